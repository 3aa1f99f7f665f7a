"""Command ``top``: watch a store in use: write rate, freed bytes, and changed segments."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import attrs
import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from msgstore.cli import options, output, stores
from msgstore.cli.directory_snapshot import DirectorySampler, DirectorySnapshot, SnapshotDiff
from msgstore.cli.stores import StoreTarget
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
@stores.watched
@click.option(
    "--interval", type=options.seconds, default="1s", show_default=True, metavar="TIME", help="Time between two refreshes."
)
@click.option("--once", is_flag=True, help="Refresh once, after one interval, and end.")
@options.as_json
def top(store: stores.StoreArgument, interval: float, once: bool, out: output.Output) -> None:
    """Watch a store that another process uses: rates, segments, garbage, collections. Ctrl-C ends the command.

    Reads names and sizes in the directory, writes nothing, and never blocks the writer. Only the index knows messages and
    garbage: they are shown if it can be read.

    \b
    Examples:
      msgstore top data/orders
      msgstore top data/orders --interval 5s --json
    """
    target = store.find()
    sampler = DirectorySampler(target, Files())
    try:
        _watch(target, sampler, interval, out, once=once)
    except KeyboardInterrupt:
        return  # the usual end of the command


def _watch(target: StoreTarget, sampler: DirectorySampler, interval: float, out: output.Output, *, once: bool) -> None:
    """Print a snapshot and its changes once per interval."""
    console, totals = out.console, Totals()
    before = sampler.sample()
    live = None if once or out.as_json or not console.is_terminal else Live(console=console, auto_refresh=False, screen=True)
    with live or contextlib.nullcontext():
        if live:
            live.update(_screen(target, console, before, None, totals), refresh=True)
        while True:
            time.sleep(interval)
            after = sampler.sample()
            change = SnapshotDiff.between(before, after)
            totals.add(change, after)
            out.emit(_as_json(target, after, change))
            if live:
                live.update(_screen(target, console, after, change, totals), refresh=True)
            else:
                out.print(_screen(target, console, after, change, totals))
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
    writer = f"process {snapshot.writer}" if snapshot.writer else "another process" if snapshot.is_open else "no process"
    rows: list[tuple[str, Any]] = [("open for writing", writer)]
    figures = snapshot.index_figures
    if figures:
        net = "" if not change or change.messages is None else f"  {change.messages / change.seconds:+,.0f}/s"
        live, garbage = sum(figures.live_bytes.values()), figures.garbage_bytes
        part = f" ({100 * garbage / snapshot.bytes_on_disk:.0f} %)" if snapshot.bytes_on_disk else ""
        rows += [
            ("messages", f"{figures.messages:,}{net}"),
            ("live", output.size(live)),
            ("garbage", f"{output.size(garbage)}{part}"),
        ]
    else:
        rows.append(("messages", Text("only the index knows, and it cannot be read now", style="dim")))
    working = f"; {output.plural(snapshot.unfinished, 'unfinished file')}" if snapshot.unfinished else ""
    last = f"; last: {totals.last_collection}" if totals.last_collection else ""
    made = f"{totals.created:,} created, {totals.deleted:,} deleted since the start"
    rows += [
        ("on disk", output.size(snapshot.bytes_on_disk)),
        ("written", _rate(change.written, change) if change else "-"),
        ("freed", _rate(change.freed, change) if change else "-"),
        ("segments", f"{len(snapshot.segments):,}; {made}"),
        ("collector", f"{totals.shrunk:,} cut, {output.size(totals.freed)} freed{working}{last}"),
    ]
    drawn = output.facts(None, rows)
    # As a Text, a long title is wrapped. A refreshed screen would cut it.
    drawn.title = Text(f"{target.path}  {time.strftime('%H:%M:%S', time.localtime(snapshot.clock))}")
    return drawn


def _segments(console: output.Terminal, snapshot: DirectorySnapshot, change: SnapshotDiff | None) -> Table:
    """Return a table of the segments that changed last, as many as fit on the screen."""
    newest = sorted(snapshot.segments, key=lambda name: snapshot.segments[name][1], reverse=True)
    fitting = max(console.height - _HEADER_ROWS, _MIN_SEGMENT_ROWS) if console.is_terminal else _MIN_SEGMENT_ROWS
    columns = ("changed last", "size", "live", "garbage", "")
    rows: list[tuple[Any, ...]] = []
    for name in newest[:fitting]:
        size, _ = snapshot.segments[name]
        live = snapshot.index_figures.live_bytes.get(name) if snapshot.index_figures else None
        garbage = "-" if live is None else f"{100 * max(0, size - live) / size:.0f} %" if size else "0 %"
        new = change is not None and name in change.created
        cut = change is not None and name in change.shrunk
        mark = Text("created", style="green") if new else Text("cut", style="yellow") if cut else ""
        shown = output.right("-" if live is None else output.size(live))
        rows.append((name, output.size_cell(size), shown, output.right(garbage), mark))
    if len(newest) > fitting:
        rows.append((f"... and {len(newest) - fitting:,} more", "", "", "", ""))
    return output.table(None, columns, rows)


def _rate(size: int, change: SnapshotDiff) -> str:
    return f"{output.size(int(size / change.seconds))}/s"
