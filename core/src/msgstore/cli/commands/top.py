"""Command ``top``: watch a store in use: write rate, freed bytes, and changed segments."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from msgstore.cli import options, output
from msgstore.cli.directory_snapshot import DirectorySampler, DirectorySnapshot, SnapshotDiff
from msgstore.cli.stores import StoreTarget, find_store
from msgstore.files import Files

_HEADER_ROWS = 12
"""Screen lines that do not show segments."""
_MIN_SEGMENT_ROWS = 5
"""Segments that are shown on every screen."""


@attrs.define
class Totals:
    """Sums since the start of the command."""

    created: int = 0
    deleted: int = 0
    shrunk: int = 0
    freed: int = 0
    last_collection: str = ""
    """The last observed action of the collector, with its time."""

    def add(self, change: SnapshotDiff, snapshot: DirectorySnapshot) -> None:
        """Add the changes between two snapshots. ``snapshot`` is the second one."""
        self.created += len(change.created)
        self.deleted += len(change.deleted)
        self.shrunk += len(change.shrunk)
        self.freed += change.freed
        actions = [*(f"cut {name}" for name in change.shrunk), *(f"deleted {name}" for name in change.deleted)]
        if actions:
            more = f" and {len(actions) - 1} more" if len(actions) > 1 else ""
            self.last_collection = f"{actions[0]}{more} at {time.strftime('%H:%M:%S', time.localtime(snapshot.clock))}"


@click.command()
@options.store
@click.option(
    "--interval", type=options.seconds, default="1s", show_default=True, metavar="TIME", help="Time between two refreshes."
)
@click.option("--once", is_flag=True, help="Refresh once, after one interval, and end.")
@options.config_file
@options.as_json
def top(store: str, interval: float, once: bool, config_file: Path | None, as_json: bool) -> None:
    """Watch a store that another process uses: rates, segments, garbage, collections. Ctrl-C ends the command.

    Reads names and sizes in the directory, writes nothing, and never blocks the writer. Only the index knows messages and
    garbage: they are shown if it can be read.

    \b
    Examples:
      msgstore top data/orders
      msgstore top data/orders --interval 5s --json
    """
    target = find_store(store, config_file)
    sampler = DirectorySampler(target, Files())
    try:
        _watch(target, sampler, interval, once=once, as_json=as_json)
    except KeyboardInterrupt:
        return  # the usual end of the command


def _watch(target: StoreTarget, sampler: DirectorySampler, interval: float, *, once: bool, as_json: bool) -> None:
    """Print a snapshot and its changes once per interval."""
    console, totals = output.Terminal(), Totals()
    before = sampler.sample()
    live = None if once or as_json or not console.is_terminal else Live(console=console, auto_refresh=False, screen=True)
    with live or contextlib.nullcontext():
        if live:
            live.update(_screen(target, console, before, None, totals), refresh=True)
        while True:
            time.sleep(interval)
            after = sampler.sample()
            change = SnapshotDiff.between(before, after)
            totals.add(change, after)
            if as_json:
                output.emit(_as_json(target, after, change))
            elif live:
                live.update(_screen(target, console, after, change, totals), refresh=True)
            else:
                console.print(_screen(target, console, after, change, totals))
            if once:
                return
            before = after


def _as_json(target: StoreTarget, snapshot: DirectorySnapshot, change: SnapshotDiff) -> dict[str, Any]:
    figures = snapshot.index_figures
    return {
        "path": str(target.path),
        "time": round(snapshot.clock, 3),
        "seconds": round(change.seconds, 3),
        "open": snapshot.is_open,
        "writer": snapshot.writer,
        "messages": figures.messages if figures else None,
        "segments": len(snapshot.segments),
        "bytes_on_disk": snapshot.bytes_on_disk,
        "live_bytes": sum(figures.live_bytes.values()) if figures else None,
        "garbage_bytes": figures.garbage_bytes if figures else None,
        "written_per_second": round(change.written / change.seconds),
        "freed_per_second": round(change.freed / change.seconds),
        "messages_per_second": None if change.messages is None else round(change.messages / change.seconds),
        "created": change.created,
        "deleted": change.deleted,
        "shrunk": change.shrunk,
        "unfinished": snapshot.unfinished,
    }


def _screen(
    target: StoreTarget, console: output.Terminal, snapshot: DirectorySnapshot, change: SnapshotDiff | None, totals: Totals
) -> RenderableType:
    return Group(_facts(target, snapshot, change, totals), Text(), _segments(console, snapshot, change))


def _facts(target: StoreTarget, snapshot: DirectorySnapshot, change: SnapshotDiff | None, totals: Totals) -> Table:
    rows = output.table(None, "", "")
    # As a Text, a long title is wrapped. A refreshed screen would cut it.
    rows.title = Text(f"{target.path}  {time.strftime('%H:%M:%S', time.localtime(snapshot.clock))}")
    rows.show_header = False
    writer = f"process {snapshot.writer}" if snapshot.writer else "another process" if snapshot.is_open else "no process"
    rows.add_row("open for writing", writer)
    figures = snapshot.index_figures
    if figures:
        net = "" if not change or change.messages is None else f"  {change.messages / change.seconds:+,.0f}/s"
        rows.add_row("messages", f"{figures.messages:,}{net}")
        live, garbage = sum(figures.live_bytes.values()), figures.garbage_bytes
        part = f" ({100 * garbage / snapshot.bytes_on_disk:.0f} %)" if snapshot.bytes_on_disk else ""
        rows.add_row("live", output.size(live))
        rows.add_row("garbage", f"{output.size(garbage)}{part}")
    else:
        rows.add_row("messages", Text("only the index knows, and it cannot be read now", style="dim"))
    rows.add_row("on disk", output.size(snapshot.bytes_on_disk))
    rows.add_row("written", _rate(change.written, change) if change else "-")
    rows.add_row("freed", _rate(change.freed, change) if change else "-")
    rows.add_row(
        "segments", f"{len(snapshot.segments):,}; {totals.created:,} created, {totals.deleted:,} deleted since the start"
    )
    working = f"; {output.plural(snapshot.unfinished, 'unfinished file')}" if snapshot.unfinished else ""
    last = f"; last: {totals.last_collection}" if totals.last_collection else ""
    rows.add_row("collector", f"{totals.shrunk:,} cut, {output.size(totals.freed)} freed{working}{last}")
    return rows


def _segments(console: output.Terminal, snapshot: DirectorySnapshot, change: SnapshotDiff | None) -> Table:
    """Return a table of the segments that changed last, as many as fit on the screen."""
    newest = sorted(snapshot.segments, key=lambda name: snapshot.segments[name][1], reverse=True)
    fitting = max(console.height - _HEADER_ROWS, _MIN_SEGMENT_ROWS) if console.is_terminal else _MIN_SEGMENT_ROWS
    rows = output.table(None, "changed last", "size", "live", "garbage", "", right="size live garbage")
    for name in newest[:fitting]:
        size, _ = snapshot.segments[name]
        live = snapshot.index_figures.live_bytes.get(name) if snapshot.index_figures else None
        garbage = "-" if live is None else f"{100 * max(0, size - live) / size:.0f} %" if size else "0 %"
        new = change is not None and name in change.created
        cut = change is not None and name in change.shrunk
        state = Text("created", style="green") if new else Text("cut", style="yellow") if cut else Text()
        rows.add_row(name, output.size(size), "-" if live is None else output.size(live), garbage, state)
    if len(newest) > fitting:
        rows.add_row(f"... and {len(newest) - fitting:,} more", "", "", "", "")
    return rows


def _rate(size: int, change: SnapshotDiff) -> str:
    return f"{output.size(int(size / change.seconds))}/s"
