"""``map``: segments drawn as bars to scale, byte range by byte range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click
from rich.text import Text

from msgstore.cli import options, output
from msgstore.cli.inputs import Inputs
from msgstore.cli.scan import damaged_spans, scan_inputs
from msgstore.cli.stores import bare_store
from msgstore.contract import MsgStoreError
from msgstore.directory import SETTINGS
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import SegmentReport

Live = Mapping[str, frozenset[int]]
"""A segment's file name to the offsets of its live records."""

_TRUSTED = {"trust", "tail", "taken over"}


@attrs.frozen
class Look:
    """How bytes of one kind are drawn: apart without colour, and on a terminal that knows ASCII only."""

    glyph: str
    ascii: str
    style: str
    meaning: str


LOOKS = {
    "header": Look("H", "H", "dim", "header"),
    "live": Look("█", "#", "green", "live"),
    "record": Look("▓", "=", "cyan", "record (live or dead: no index says)"),
    "dead": Look("▒", "-", "yellow", "dead"),
    "hole": Look("·", ".", "bright_black", "hole"),
    "torn": Look("~", "~", "magenta", "torn"),
    "damaged": Look("X", "X", "bold red", "damaged"),
}
_ALWAYS_SEEN = ("damaged", "torn")
"""A cell with one byte of these shows it."""


@attrs.frozen
class Drawing:
    """One segment as spans that follow one another; neighbours differ in kind."""

    path: Path
    format: str
    size: int
    spans: list[tuple[str, int, int]]
    """(kind, offset, size); the kinds are those of LOOKS."""
    live_known: bool
    is_damaged: bool

    @property
    def live_bytes(self) -> int | None:
        return sum(size for kind, _, size in self.spans if kind == "live") if self.live_known else None

    @property
    def live_percent(self) -> float | None:
        return None if self.live_bytes is None else round(100 * self.live_bytes / self.size, 1) if self.size else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "format": self.format,
            "size": self.size,
            "live_bytes": self.live_bytes,
            "live_percent": self.live_percent,
            "spans": [{"kind": kind, "offset": offset, "size": size} for kind, offset, size in self.spans],
        }


@click.command(name="map")
@options.paths
@options.refcounts
@options.as_json
def map_(paths: tuple[Path, ...], refcounts_file: Path | None, as_json: bool) -> None:
    """Draw segments as bars to scale: live, dead, hole, torn, damaged. Writes nothing.

    What is live is known if the store's saved index is still good, or with --refcounts.

    \b
    Examples:
      msgstore map data/orders
      msgstore map msg_store_persistent --refcounts counts.csv
    """
    catalogue = load_catalogue()
    inputs = Inputs(catalogue)
    refcounts = options.read_refcounts(refcounts_file)
    drawings = []
    damaged = False
    for directory, group in groupby(inputs.find(paths), key=lambda found: found.path.parent):
        live = live_offsets(directory, catalogue, refcounts)
        for report in scan_inputs(group):
            drawing = draw(report, live)
            damaged |= drawing.is_damaged
            if as_json:
                output.emit(drawing.as_json())
            else:
                drawings.append(drawing)
    if not as_json:
        show(output.Terminal(), drawings)
    if damaged:
        click.get_current_context().exit(1)


def live_offsets(directory: Path, catalogue: Catalogue, refcounts: list[tuple[bytes, int]] | None = None) -> Live | None:
    """What a store's index says, if it says anything that can be trusted; None if not."""
    if refcounts is None and not (directory / SETTINGS).exists():
        return None
    try:
        with bare_store(directory, catalogue).open("r", refcounts, live="never") as store:
            how = store.stats().recovery.how
            if how in _TRUSTED or (how == "rebuild" and refcounts is not None):
                names = {segment.number: segment.file for segment in store.segments()}
                by_number = groupby(store.entries(), key=lambda entry: entry.number)
                return {names.get(number, ""): frozenset(entry.offset for entry in entries) for number, entries in by_number}
    except MsgStoreError as error:
        output.note(f"{error} Drawn without it.")
    return None


def draw(report: SegmentReport, live: Live | None) -> Drawing:
    spans = list(_merged(_spans(report, live)))
    return Drawing(report.path, report.format.name, report.size, spans, live is not None, report.is_damaged)


def _spans(report: SegmentReport, live: Live | None) -> list[tuple[int, int, str]]:
    scan = report.scan
    offsets = None if live is None else live.get(report.path.name, frozenset())
    spans = [(spot.offset, spot.size, "torn" if spot.reason == "torn" else "damaged") for spot in damaged_spans(report)]
    if scan.header == "ok":
        spans.append((0, len(report.format.format.header), "header"))
    spans += [(offset, size, "hole") for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True)]
    for columns, unknown in ((scan.records, "record"), (scan.duplicates, "dead")):
        for offset, size in zip(columns.offsets, columns.sizes, strict=True):
            spans.append((offset, size, unknown if offsets is None else "live" if offset in offsets else "dead"))
    return sorted(spans)


def _merged(spans: Iterable[tuple[int, int, str]]) -> Iterator[tuple[str, int, int]]:
    for kind, group in groupby(spans, key=lambda span: span[2]):
        run = list(group)
        yield kind, run[0][0], sum(size for _, size, _ in run)


def show(console: output.Terminal, drawings: list[Drawing]) -> None:
    """A bar a segment: the largest takes the whole width. Then what the glyphs mean."""
    if not drawings:
        console.print("no segments")
        return
    ascii_only = not str(console.encoding).lower().startswith("utf")
    largest = max(max(drawing.size for drawing in drawings), 1)
    seen: set[str] = set()
    for directory, group in groupby(drawings, key=lambda drawing: drawing.path.parent):
        rows = list(group)
        console.print(str(directory), style="bold", soft_wrap=True)
        names = max(len(drawing.path.name) for drawing in rows)
        width = max(console.width - names - 25, 10)
        for drawing in rows:
            percent = "" if drawing.live_percent is None else f"{drawing.live_percent:.0f} % live"
            line = Text(f"{drawing.path.name:>{names}} {output.size(drawing.size):>10} ")
            kinds = _cells(drawing, max(round(width * drawing.size / largest), 1))
            seen.update(kinds)
            line.append_text(_bar(kinds, ascii_only=ascii_only))
            line.append(f"  {percent}" if percent else "", style="dim")
            console.print(line, no_wrap=True, soft_wrap=True)
    legend = Text("\n")
    for kind, look in LOOKS.items():
        if kind in seen:
            legend.append(look.ascii if ascii_only else look.glyph, style=look.style)
            legend.append(f" {look.meaning}   ")
    console.print(legend)


def _cells(drawing: Drawing, cells: int) -> list[str]:
    """The kind that each of ``cells`` equal parts of a segment is drawn as."""
    cells = min(cells, max(drawing.size, 1))
    weights: list[dict[str, int]] = [{} for _ in range(cells)]
    for kind, offset, size in drawing.spans:
        first = offset * cells // drawing.size if drawing.size else 0
        last = (offset + size - 1) * cells // drawing.size if size else first
        for cell in range(min(first, cells - 1), min(last, cells - 1) + 1):
            begin, end = drawing.size * cell // cells, drawing.size * (cell + 1) // cells
            inside = max(min(end, offset + size) - max(begin, offset), 1)
            weights[cell][kind] = weights[cell].get(kind, 0) + inside
    return [_dominant(weight) for weight in weights]


def _bar(kinds: list[str], *, ascii_only: bool) -> Text:
    bar = Text()
    for kind, run in groupby(kinds):
        glyph = LOOKS[kind].ascii if ascii_only else LOOKS[kind].glyph
        bar.append(glyph * len(list(run)), style=LOOKS[kind].style)
    return bar


def _dominant(weight: dict[str, int]) -> str:
    for kind in _ALWAYS_SEEN:
        if kind in weight:
            return kind
    return max(weight, key=lambda kind: weight[kind], default="hole")
