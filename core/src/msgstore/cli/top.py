"""``top``: a store while others use it: what is written, what is given back, and which segments change."""

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
from msgstore.cli.directory_snapshot import SnapshotDiff, DirectorySnapshot, DirectorySampler
from msgstore.cli.stores import StoreTarget, find_store
from msgstore.files import Files

ROWS_ABOVE = 12
"""Lines of a screen that are not segments."""
FEWEST_ROWS = 5


@attrs.define
class Totals:
    """What was seen since the start."""

    begun: int = 0
    deleted: int = 0
    shrunk: int = 0
    freed: int = 0
    last: str = ""
    """What the collector was last seen to do, and when."""

    def add(self, change: SnapshotDiff, look: DirectorySnapshot) -> None:
        self.begun += len(change.begun)
        self.deleted += len(change.deleted)
        self.shrunk += len(change.shrunk)
        self.freed += change.freed
        done = [*(f"cut {name}" for name in change.shrunk), *(f"deleted {name}" for name in change.deleted)]
        if done:
            more = f" and {len(done) - 1} more" if len(done) > 1 else ""
            self.last = f"{done[0]}{more} at {time.strftime('%H:%M:%S', time.localtime(look.clock))}"


@click.command()
@options.store
@click.option(
    "--interval", type=options.seconds, default="1s", show_default=True, metavar="TIME", help="Time between two refreshes."
)
@click.option("--once", is_flag=True, help="End after one refresh, which comes after one interval.")
@options.config_file
@options.as_json
def top(store: str, interval: float, once: bool, config_file: Path | None, as_json: bool) -> None:
    """Watch a store that another process uses: rates, segments, garbage, the collector's work. Ctrl-C ends it.

    Reads names and sizes in the directory, writes nothing, and makes nobody wait. Messages and garbage are only known to the
    index: they are shown if it can be asked.

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
        return  # the usual way to end it


def _watch(target: StoreTarget, sampler: DirectorySampler, interval: float, *, once: bool, as_json: bool) -> None:
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


def _as_json(target: StoreTarget, look: DirectorySnapshot, change: SnapshotDiff) -> dict[str, Any]:
    known = look.known
    return {
        "path": str(target.path),
        "time": round(look.clock, 3),
        "seconds": round(change.seconds, 3),
        "open": look.is_open,
        "writer": look.writer,
        "messages": known.messages if known else None,
        "segments": len(look.segments),
        "bytes_on_disk": look.bytes_on_disk,
        "live_bytes": sum(known.live_bytes.values()) if known else None,
        "garbage_bytes": known.garbage_bytes if known else None,
        "written_per_second": round(change.written / change.seconds),
        "freed_per_second": round(change.freed / change.seconds),
        "messages_per_second": None if change.messages is None else round(change.messages / change.seconds),
        "begun": change.begun,
        "deleted": change.deleted,
        "shrunk": change.shrunk,
        "unfinished": look.unfinished,
    }


def _screen(target: StoreTarget, console: output.Terminal, look: DirectorySnapshot, change: SnapshotDiff | None, totals: Totals) -> RenderableType:
    return Group(_facts(target, look, change, totals), Text(), _segments(console, look, change))


def _facts(target: StoreTarget, look: DirectorySnapshot, change: SnapshotDiff | None, totals: Totals) -> Table:
    rows = output.table(None, "", "")
    # On a screen that is drawn over and over a line that is too long would be cut.
    rows.title = Text(f"{target.path}  {time.strftime('%H:%M:%S', time.localtime(look.clock))}")
    rows.show_header = False
    who = f"process {look.writer}" if look.writer else "another process" if look.is_open else "nobody"
    rows.add_row("open for writing", who)
    known = look.known
    if known:
        net = "" if not change or change.messages is None else f"  {change.messages / change.seconds:+,.0f}/s"
        rows.add_row("messages", f"{known.messages:,}{net}")
        live, garbage = sum(known.live_bytes.values()), known.garbage_bytes
        part = f" ({100 * garbage / look.bytes_on_disk:.0f} %)" if look.bytes_on_disk else ""
        rows.add_row("live", output.size(live))
        rows.add_row("garbage", f"{output.size(garbage)}{part}")
    else:
        rows.add_row("messages", Text("only the index knows, and it cannot be asked now", style="dim"))
    rows.add_row("on disk", output.size(look.bytes_on_disk))
    rows.add_row("written", _rate(change.written, change) if change else "-")
    rows.add_row("given back", _rate(change.freed, change) if change else "-")
    rows.add_row("segments", f"{len(look.segments):,}; {totals.begun:,} begun, {totals.deleted:,} deleted since the start")
    working = f"; {output.plural(look.unfinished, 'unfinished file')}" if look.unfinished else ""
    last = f"; last: {totals.last}" if totals.last else ""
    rows.add_row("collector", f"{totals.shrunk:,} cut, {output.size(totals.freed)} given back{working}{last}")
    return rows


def _segments(console: output.Terminal, look: DirectorySnapshot, change: SnapshotDiff | None) -> Table:
    """The segments that changed last; as many as fit."""
    newest = sorted(look.segments, key=lambda name: look.segments[name][1], reverse=True)
    fitting = max(console.height - ROWS_ABOVE, FEWEST_ROWS) if console.is_terminal else FEWEST_ROWS
    rows = output.table(None, "changed last", "size", "live", "garbage", "", right="size live garbage")
    for name in newest[:fitting]:
        size, _ = look.segments[name]
        live = look.known.live_bytes.get(name) if look.known else None
        garbage = "-" if live is None else f"{100 * max(0, size - live) / size:.0f} %" if size else "0 %"
        new = change is not None and name in change.begun
        cut = change is not None and name in change.shrunk
        what = Text("begun", style="green") if new else Text("cut", style="yellow") if cut else Text()
        rows.add_row(name, output.size(size), "-" if live is None else output.size(live), garbage, what)
    if len(newest) > fitting:
        rows.add_row(f"... and {len(newest) - fitting:,} more", "", "", "", "")
    return rows


def _rate(size: int, change: SnapshotDiff) -> str:
    return f"{output.size(int(size / change.seconds))}/s"
