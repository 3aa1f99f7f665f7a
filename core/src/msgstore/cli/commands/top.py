"""Command ``top``: watch a store in use: write rate, freed bytes, and changed segments.

A snapshot of the directory reads names, sizes and times, and tests for an instant whether a writer holds the store's lock. It
never waits for a writer, and no writer waits for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import attrs
import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from msgstore.cli import options, output, stores
from msgstore.contract import Capability, MsgStoreError, StoreError, StoreLocked
from msgstore.directory import SETTINGS, list_segments
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.engine.opening import open_configured
from msgstore.files import UNFINISHED, Files
from msgstore.writer_lock import check_no_writer

_HEADER_ROWS = 12
"""Screen lines that do not show segments."""
_MIN_SEGMENT_ROWS = 5
"""Segments that are shown on every screen."""


@attrs.frozen
class IndexFigures:
    """Figures that only the index has, as of its last commit."""

    messages: int
    garbage_bytes: int
    live_bytes: Mapping[str, int]
    """Live bytes of each file."""


@attrs.frozen
class Snapshot:
    """State of a directory at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    names: Mapping[str, tuple[int, int]]
    """Every file to (size, modification time in nanoseconds)."""
    segments: Mapping[str, int]
    """Size of each segment, in number order."""
    writer: StoreLocked | None
    """The error of an opening, if a process has the store open for writing."""
    figures: IndexFigures | None
    """None if the index cannot be read without reading segments."""


def take_snapshot(target: stores.StoreTarget, before: Snapshot | None = None) -> Snapshot:
    """Return a snapshot. Raises OSError if the directory cannot be listed.

    Asks an index that loads without reading segments: persistent, or saved at a clean shutdown. Its figures in ``before`` are
    used again if no writer has the store open and no file has changed.
    """
    files, directory, at = Files(), target.path, time.monotonic()
    names = files.list(directory)
    segments = {one.path.name: one.size for one in list_segments(files, directory, target.catalogue.formats_by_extension())}
    writer = figures = None
    try:
        check_no_writer(directory)
    except StoreLocked as error:
        writer = error
    except (StoreError, OSError):
        pass
    is_persistent = Capability.PERSISTENT in target.catalogue.index(target.config.index.name).capabilities
    if before and not writer and before.names == names:
        figures = before.figures
    elif is_persistent or (not writer and {CLEAN, SETTINGS} <= names.keys()):
        figures = read_index(target)
    return Snapshot(at, names, segments, writer, figures)


def read_index(target: stores.StoreTarget) -> IndexFigures | None:
    """Open the store read-only and return its figures, or None if that fails."""
    try:
        with open_configured(target.config, target.catalogue, mode="r") as store:
            stats = store.stats()
            live = {segment.file: segment.live_bytes for segment in store.segments()}
            return IndexFigures(stats.messages, stats.garbage_bytes, live)
    except (MsgStoreError, OSError):
        return None


def compare(target: stores.StoreTarget, before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return the object of a refresh: the later snapshot, and the changes as far as sizes show them.

    Files that were created and deleted in between are not seen.
    """
    old, new, figures = before.segments, after.segments, after.figures
    seconds = max(after.at - before.at, 1e-9)
    grown = {name: size - old.get(name, 0) for name, size in new.items()}
    deleted = [name for name in old if name not in new]
    freed = sum(old[name] for name in deleted) - sum(size for size in grown.values() if size < 0)
    messages = figures.messages - before.figures.messages if figures and before.figures else None
    return {
        "path": str(target.path),
        "time": round(time.time(), 3),
        "seconds": round(seconds, 3),
        "open": after.writer is not None,
        "writer": after.writer.pid if after.writer else None,
        "messages": figures.messages if figures else None,
        "segments": len(new),
        "bytes_on_disk": sum(new.values()),
        "live_bytes": sum(figures.live_bytes.values()) if figures else None,
        "garbage_bytes": figures.garbage_bytes if figures else None,
        "written_per_second": round(sum(size for size in grown.values() if size > 0) / seconds),
        "freed_per_second": round(freed / seconds),
        "messages_per_second": None if messages is None else round(messages / seconds),
        "created": [name for name in new if name not in old],
        "deleted": deleted,
        "shrunk": [name for name, size in grown.items() if size < 0],
        "unfinished": sum(name.endswith(UNFINISHED) for name in after.names),
    }


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
    sums = {"created": 0, "deleted": 0, "shrunk": 0, "freed": 0}
    before = take_snapshot(target)
    is_screen = out.console.is_terminal and not (once or out.as_json)
    with (
        contextlib.suppress(KeyboardInterrupt),  # the usual end of the command
        Live(console=out.console, auto_refresh=False, screen=True) if is_screen else contextlib.nullcontext() as live,
    ):
        if live:
            live.update(_screen(out, before, compare(target, before, before), sums), refresh=True)
        while True:
            time.sleep(interval)
            after = take_snapshot(target, before)
            change = compare(target, before, after)
            for name in ("created", "deleted", "shrunk"):
                sums[name] += len(change[name])
            sums["freed"] += round(change["freed_per_second"] * change["seconds"])
            out.emit(change)
            if live:
                live.update(_screen(out, after, change, sums), refresh=True)
            else:
                out.print(_screen(out, after, change, sums))
            if once:
                return
            before = after


def _screen(out: output.Output, snapshot: Snapshot, change: Mapping[str, Any], sums: Mapping[str, int]) -> Group:
    """Return the figures, and the segments that changed last, as many as fit on the screen."""
    pid = f"process {change['writer']}" if change["writer"] else "another process"
    rows: list[tuple[str, Any]] = [("open for writing", pid if change["open"] else "no process")]
    disk = change["bytes_on_disk"]
    if snapshot.figures:
        net = "" if change["messages_per_second"] is None else f"  {change['messages_per_second']:+,}/s"
        part = f" ({100 * change['garbage_bytes'] / disk:.0f} %)" if disk else ""
        rows.append(("messages", f"{change['messages']:,}{net}"))
        rows.append(("live", output.size(change["live_bytes"])))
        rows.append(("garbage", f"{output.size(change['garbage_bytes'])}{part}"))
    else:
        rows.append(("messages", Text("only the index knows, and it cannot be read now", style="dim")))
    working = f"; {output.plural(change['unfinished'], 'unfinished file')}" if change["unfinished"] else ""
    rows += [
        ("on disk", output.size(disk)),
        ("written", f"{output.size(change['written_per_second'])}/s"),
        ("freed", f"{output.size(change['freed_per_second'])}/s"),
        ("segments", f"{change['segments']:,}; {sums['created']:,} created, {sums['deleted']:,} deleted since the start"),
        ("collector", f"{sums['shrunk']:,} cut, {output.size(sums['freed'])} freed{working}"),
    ]
    facts = output.facts(None, rows)
    # As a Text, a long title is wrapped. A refreshed screen would cut it.
    facts.title = Text(f"{change['path']}  {time.strftime('%H:%M:%S', time.localtime(change['time']))}")
    newest = sorted(snapshot.segments.items(), key=lambda one: snapshot.names.get(one[0], (0, 0))[1], reverse=True)
    fitting = max(out.console.height - _HEADER_ROWS, _MIN_SEGMENT_ROWS) if out.console.is_terminal else _MIN_SEGMENT_ROWS
    live = snapshot.figures.live_bytes if snapshot.figures else {}
    columns: output.Columns[tuple[str, int]] = {
        "changed last": lambda one: one[0],
        "size": lambda one: output.size_cell(one[1]),
        "live": lambda one: output.right(output.size(live[one[0]]) if one[0] in live else "-"),
        "garbage": lambda one: output.right(
            f"{100 * max(0, one[1] - live[one[0]]) / max(one[1], 1):.0f} %" if one[0] in live else "-"
        ),
    }
    table = output.table(None, columns, newest[:fitting])
    if len(newest) > fitting:
        table.add_row(f"... and {len(newest) - fitting:,} more")
    return Group(facts, Text(), table)
