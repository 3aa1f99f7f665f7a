"""Command ``map``: draw segments as bars to scale, in the terminal or on a page.

The page of ``--html`` is one self-contained file that makes no network request. Its script draws the data in it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files as package_files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import click
from rich.text import Text

from msgstore.cli import options, output
from msgstore.cli.commands.scan import note_damaged_settings, scan_inputs, show_types
from msgstore.cli.spans import KINDS, LiveReferences, PageData, live_records, spans
from msgstore.contract import StoreError
from msgstore.directory import SETTINGS, segment_number
from msgstore.files import Files
from msgstore.jobs.counts import sums_of
from msgstore.jobs.inputs import find_inputs
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import SegmentReport

MARK = '<meta name="generator" content="msgstore map">'
"""Text near the beginning of every page. A file with it may be replaced by a newer page."""
_MARK_SEARCH_BYTES = 1024
_PRIORITIES = {"damaged": 2, "torn": 1}
"""A cell with at least one byte of these kinds shows that kind, the highest number first."""


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
                drawings.append(_draw(report, live))
                out.emit(drawings[-1])
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


def _draw(report: SegmentReport, live: LiveReferences | None) -> dict[str, Any]:
    """Return the object of one segment: consecutive spans, neighbours of one kind merged."""
    runs = (list(run) for _, run in groupby(spans(report, live), key=lambda span: span.kind))
    merged: list[dict[str, Any]] = [
        {"kind": run[0].kind, "offset": run[0].offset, "size": sum(span.size for span in run)} for run in runs
    ]
    live_bytes = None if live is None else sum(span["size"] for span in merged if span["kind"] == "live")
    return {
        "path": str(report.path),
        "format": report.format.name,
        "size": report.size,
        "live_bytes": live_bytes,
        "live_percent": None if live_bytes is None else round(100 * live_bytes / max(report.size, 1), 1),
        "records_by_name": report.count_types(),
        "spans": merged,
    }


def _show(console: output.Terminal, drawings: list[dict[str, Any]]) -> None:
    """Print one bar per segment, then the legend. The largest segment has the full width."""
    ascii_only = not str(console.encoding).lower().startswith("utf")
    largest = max([1, *(drawing["size"] for drawing in drawings)])
    shown: set[str] = set()
    counts: Counter[str] = Counter()
    for directory, group in groupby(drawings, key=lambda drawing: Path(drawing["path"]).parent):
        rows = {Path(drawing["path"]).name: drawing for drawing in group}
        console.print(str(directory), style="bold", soft_wrap=True)
        names = max(map(len, rows))
        width = max(console.width - names - 25, 10)
        for name, drawing in rows.items():
            counts.update(drawing["records_by_name"])
            line = Text(f"{name:>{names}} {output.size(drawing['size']):>10} ")
            for kind, cells in groupby(_cells(drawing, max(round(width * drawing["size"] / largest), 1))):
                shown.add(kind)
                _, *glyphs, style = KINDS[kind]
                line.append(glyphs[ascii_only] * len(list(cells)), style=style)
            if drawing["live_percent"] is not None:
                line.append(f"  {drawing['live_percent']:.0f} % live", style="dim")
            console.print(line, no_wrap=True, soft_wrap=True)
    legend = Text("\n")
    for kind, (meaning, *glyphs, style) in KINDS.items():
        if kind in shown:
            legend.append(glyphs[ascii_only], style=style)
            legend.append(f" {meaning}   ")
    drawn = {span["kind"] for drawing in drawings for span in drawing["spans"] if span["size"]}
    if small := [meaning for kind, (meaning, *_) in KINDS.items() if kind in drawn - shown - {"header"}]:
        legend.append(f"\ntoo small to be shown here: {', '.join(small)}", style="dim")
    console.print(legend if drawings else "no segments")
    if types := show_types(counts):
        console.print(f"records: {types}", style="dim")


def _cells(drawing: dict[str, Any], cells: int) -> list[str]:
    """Return the kind that each of ``cells`` equal parts of a segment shows: damage first, else the one with most bytes."""
    total = max(drawing["size"], 1)
    cells = min(cells, total)
    weights: list[Counter[str]] = [Counter() for _ in range(cells)]
    for span in drawing["spans"]:
        offset, after = span["offset"], span["offset"] + span["size"]
        for cell in range(offset * cells // total, (after - 1) * cells // total + 1):
            begin, end = total * cell // cells, total * (cell + 1) // cells
            weights[cell][span["kind"]] += max(min(end, after) - max(begin, offset), 1)
    return [max(w, key=lambda kind: (_PRIORITIES.get(kind, 0), w[kind]), default="hole") for w in weights]


# -- the page ---------------------------------------------------------------------------------------------------------------


def check_target(path: Path, catalogue: Catalogue, *, force: bool) -> Path:
    """Return the path that the page will be written to, with symbolic links resolved. Raises StoreError for an unsuitable path.

    Without ``force``, refuses to replace a file that is not such a page: the arguments are easily swapped.
    """
    target = Path(os.path.realpath(path))
    problem = ""
    if target.name == SETTINGS or segment_number(target.name, catalogue.formats_by_extension()) is not None:
        problem = "has the name of a part of a store. Give a name such as map.html."
    elif os.path.lexists(target) and not target.is_file():
        problem = "is not a regular file. Give the name of one, such as map.html."
    elif not target.parent.is_dir():
        problem = f"there is no directory {target.parent}. Create it first."
    elif target.exists() and not force:
        with target.open("rb") as stream:
            if MARK.encode() not in stream.read(_MARK_SEARCH_BYTES):
                problem = "exists and is not a page of 'msgstore map'. Use --force to replace it."
    if problem:
        raise StoreError(f"{path}: {problem}")
    return target


def write_page(path: Path, data: Mapping[str, Any]) -> int:
    """Write the page atomically. Returns its size in bytes. Raises StoreError."""
    page = render(data).encode("utf-8")
    try:
        Files().write_file(path, [page], sync=False)
    except OSError as error:
        raise StoreError(f"{path}: the page cannot be written: {error.strerror or error}. Nothing was left behind.") from error
    return len(page)


def render(data: Mapping[str, Any]) -> str:
    """Return the page. Its policy allows only its own style and script, by hash, so that text of segments stays text."""
    template, style, script = (
        package_files("msgstore.cli").joinpath(f"map_page.{part}").read_text(encoding="utf-8") for part in ("html", "css", "js")
    )
    title = ", ".join(store["path"] for store in data["stores"]) or "no segments"
    return Template(template).substitute(
        mark=MARK,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        title=html.escape(title.encode("utf-8", "replace").decode()),
        style=style,
        script=script,
        data=as_inline_json(data),
    )


def as_inline_json(value: object) -> str:
    """Return JSON for a script element. It contains no character that could end the element or start another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
