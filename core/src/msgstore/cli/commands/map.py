"""Command ``map``: draw segments as bars to scale, byte range by byte range."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click
from rich.text import Text

from msgstore.cli import options, output
from msgstore.cli.commands.scan import note_damaged_settings, scan_inputs, show_types
from msgstore.cli.map_page import PageData, check_target, write_page
from msgstore.cli.spans import KINDS, LiveReferences, live_records, spans
from msgstore.jobs.counts import sums_of
from msgstore.jobs.inputs import find_inputs
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import SegmentReport

_PRIORITIES = {"damaged": 2, "torn": 1}
"""A cell with at least one byte of these kinds shows that kind, the highest number first."""


@attrs.frozen
class Drawing:
    """One segment as consecutive spans. Neighbours differ in kind."""

    path: Path
    format: str
    size: int
    spans: list[tuple[str, int, int]]
    """(kind, offset, size). The kinds are the keys of KINDS."""
    live_bytes: int | None
    """Bytes of live records, or None if unknown."""
    types: Mapping[str, int]
    """Record type name to number of records."""

    @classmethod
    def of(cls, report: SegmentReport, live: LiveReferences | None) -> Drawing:
        """Return one segment with neighbouring spans of one kind merged."""
        merged = []
        for kind, group in groupby(spans(report, live), key=lambda span: span.kind):
            run = list(group)
            merged.append((kind, run[0].offset, sum(span.size for span in run)))
        live_bytes = None if live is None else sum(size for kind, _, size in merged if kind == "live")
        return cls(report.path, report.format.name, report.size, merged, live_bytes, report.count_types())

    @property
    def live_percent(self) -> float | None:
        """Share of live records in the file, or None if unknown."""
        return None if self.live_bytes is None else round(100 * self.live_bytes / self.size, 1) if self.size else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "format": self.format,
            "size": self.size,
            "live_bytes": self.live_bytes,
            "live_percent": self.live_percent,
            "records_by_name": dict(self.types),
            "spans": [{"kind": kind, "offset": offset, "size": size} for kind, offset, size in self.spans],
        }


@click.command(name="map")
@options.paths
@options.refcounts
@options.file(
    "--html", "page", help="Instead, write a page for a browser to FILE, with every record and what each GC policy would do."
)
@click.option("--force", is_flag=True, help="Replace FILE even if it is not a page of 'msgstore map'.")
@options.as_json
def map_(paths: tuple[Path, ...], refcounts_file: Path | None, page: Path | None, force: bool, out: output.Output) -> None:
    """Draw segments as bars to scale: live, dead, hole, torn, damaged. Writes only the page that --html names.

    PATH is a segment, a directory of segments, a tree of such directories, or a glob. Live records are known if the store's
    saved index is still valid, or with --refcounts.

    \b
    Examples:
      msgstore map data/orders
      msgstore map msg_store_persistent --refcounts counts.csv
      msgstore map data/orders --html orders.html
    """
    if force and page is None:
        raise click.UsageError("--force needs --html FILE: it replaces that file. Add --html FILE, or omit --force.")
    catalogue = load_catalogue()
    target = None if page is None else check_target(page, catalogue, force=force)
    refcounts = None if refcounts_file is None else list(sums_of(refcounts_file).items())
    found = find_inputs(catalogue, paths)
    data = PageData(catalogue, found.size)
    drawings = []
    damaged = bool(found.damage)
    for directory, group in groupby(scan_inputs(found), key=lambda report: report.path.parent):
        live = live_records(directory, catalogue, refcounts)
        for report in group:
            damaged |= report.is_damaged
            if target is not None:
                data.add(report, live)
            if target is None or out.as_json:
                drawings.append(Drawing.of(report, live))
                out.emit(drawings[-1].as_json())
    if target is not None:
        size = write_page(target, data.as_json(time.time()))
        about = f"{output.plural(len(found.inputs), 'segment')}, {output.size(size)}; open it in a browser"
        out.print(f"{page}: {about}", soft_wrap=True)
    elif not out.as_json:
        _show(out.console, drawings)
    if found.damage:
        out.damage(found.damage)
    note_damaged_settings(found)
    out.finish(damaged=damaged, not_read=found.not_read)


def _show(console: output.Terminal, drawings: list[Drawing]) -> None:
    """Print one bar per segment, then the legend. The largest segment has the full width."""
    ascii_only = not str(console.encoding).lower().startswith("utf")
    largest = max([1, *(drawing.size for drawing in drawings)])
    shown: set[str] = set()
    for directory, group in groupby(drawings, key=lambda drawing: drawing.path.parent):
        rows = list(group)
        console.print(str(directory), style="bold", soft_wrap=True)
        names = max(len(drawing.path.name) for drawing in rows)
        width = max(console.width - names - 25, 10)
        for drawing in rows:
            line = Text(f"{drawing.path.name:>{names}} {output.size(drawing.size):>10} ")
            for kind, cells in groupby(_cells(drawing, max(round(width * drawing.size / largest), 1))):
                shown.add(kind)
                _, *glyphs, style = KINDS[kind]
                line.append(glyphs[ascii_only] * len(list(cells)), style=style)
            if drawing.live_percent is not None:
                line.append(f"  {drawing.live_percent:.0f} % live", style="dim")
            console.print(line, no_wrap=True, soft_wrap=True)
    legend = Text("\n")
    for kind, (meaning, *glyphs, style) in KINDS.items():
        if kind in shown:
            legend.append(glyphs[ascii_only], style=style)
            legend.append(f" {meaning}   ")
    drawn = {kind for drawing in drawings for kind, _, size in drawing.spans if size}
    if small := [meaning for kind, (meaning, *_) in KINDS.items() if kind in drawn - shown - {"header"}]:
        legend.append(f"\ntoo small to be shown here: {', '.join(small)}", style="dim")
    console.print(legend if drawings else "no segments")
    counts: Counter[str] = Counter()
    for drawing in drawings:
        counts.update(drawing.types)
    if types := show_types(counts):
        console.print(f"records: {types}", style="dim")


def _cells(drawing: Drawing, cells: int) -> list[str]:
    """Return the kind that each of ``cells`` equal parts of a segment shows: damage first, else the one with most bytes."""
    total = max(drawing.size, 1)
    cells = min(cells, total)
    weights: list[Counter[str]] = [Counter() for _ in range(cells)]
    for kind, offset, size in drawing.spans:
        for cell in range(offset * cells // total, (offset + size - 1) * cells // total + 1):
            begin, end = total * cell // cells, total * (cell + 1) // cells
            weights[cell][kind] += max(min(end, offset + size) - max(begin, offset), 1)
    return [max(w, key=lambda kind: (_PRIORITIES.get(kind, 0), w[kind]), default="hole") for w in weights]
