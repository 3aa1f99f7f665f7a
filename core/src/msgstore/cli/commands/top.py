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
from rich.table import Table
from rich.text import Text

from msgstore.cli import options, output, stores
from msgstore.cli.stores import StoreTarget
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
    live_bytes: Mapping[str, int]
    """Live bytes of each file."""
    garbage_bytes: int


@attrs.frozen
class DirectorySnapshot:
    """State of a directory at one moment. Sizes in bytes."""

    at: float
    """Seconds of the monotonic clock."""
    clock: float
    """Seconds since 1970."""
    segments: Mapping[str, tuple[int, int]]
    """File to (size, modification time in nanoseconds), in number order."""
    unfinished: int
    """Number of files that are still written under a temporary name."""
    is_open: bool
    """True if a process has the store open for writing."""
    writer: int | None
    """Id of the writing process, if the lock file names it."""
    index_figures: IndexFigures | None
    """None if the index cannot be read without reading segments."""

    @property
    def bytes_on_disk(self) -> int:
        return sum(size for size, _ in self.segments.values())


@attrs.frozen
class SnapshotDiff:
    """Changes between two snapshots, as far as sizes show them. Files that were created and deleted in between are not seen."""

    seconds: float
    written: int
    """Bytes by which segments grew, new segments included."""
    freed: int
    """Bytes by which segments shrank, deleted segments included."""
    created: list[str]
    deleted: list[str]
    shrunk: list[str]
    """Segments that a collection has truncated."""
    messages: int | None
    """Change of the number of messages, or None if unknown."""

    @classmethod
    def between(cls, before: DirectorySnapshot, after: DirectorySnapshot) -> SnapshotDiff:
        """Compare two snapshots of one directory."""
        old = {name: size for name, (size, _) in before.segments.items()}
        new = {name: size for name, (size, _) in after.segments.items()}
        grown = {name: size - old.get(name, 0) for name, size in new.items()}
        deleted = [name for name in old if name not in new]
        old_figures, new_figures = before.index_figures, after.index_figures
        return cls(
            seconds=max(after.at - before.at, 1e-9),
            written=sum(size for size in grown.values() if size > 0),
            freed=sum(old[name] for name in deleted) - sum(size for size in grown.values() if size < 0),
            created=[name for name in new if name not in old],
            deleted=deleted,
            shrunk=[name for name, size in grown.items() if size < 0],
            messages=new_figures.messages - old_figures.messages if old_figures and new_figures else None,
        )


class DirectorySampler:
    """Takes snapshots of one store directory."""

    def __init__(self, target: StoreTarget, files: Files) -> None:
        self._target = target
        self._files = files
        self._extensions = target.catalogue.formats_by_extension()
        self._persistent = Capability.PERSISTENT in target.catalogue.index(target.config.index.name).capabilities
        self._cached: tuple[object, IndexFigures | None] = None, None

    def sample(self) -> DirectorySnapshot:
        """Return a snapshot. Raises OSError if the directory cannot be listed."""
        directory = self._target.path
        at, clock = time.monotonic(), time.time()
        names = self._files.list(directory)
        found = list_segments(self._files, directory, self._extensions)
        segments = {segment.path.name: (segment.size, segment.mtime_ns) for segment in found}
        unfinished = sum(name.endswith(UNFINISHED) for name in names)
        is_open, writer = False, None
        try:
            check_no_writer(directory)
        except StoreLocked as error:
            is_open, writer = True, error.pid
        except (StoreError, OSError):
            pass
        return DirectorySnapshot(at, clock, segments, unfinished, is_open, writer, self._index_figures(names, is_open=is_open))

    def _index_figures(self, names: Mapping[str, tuple[int, int]], *, is_open: bool) -> IndexFigures | None:
        """Return the figures of an index that loads without reading segments: persistent, or saved at a clean shutdown.

        If no writer has the store open, the index is read again only when a file has changed.
        """
        if not self._persistent and (is_open or not {CLEAN, SETTINGS} <= names.keys()):
            return None
        key = dict(names)
        if is_open or self._cached[0] != key:
            self._cached = key, self._read_index()
        return self._cached[1]

    def _read_index(self) -> IndexFigures | None:
        """Open the store read-only and return its figures, or None if that fails."""
        try:
            with open_configured(self._target.config, self._target.catalogue, mode="r", files=self._files) as store:
                stats = store.stats()
                live = {segment.file: segment.live_bytes for segment in store.segments()}
                return IndexFigures(stats.messages, live, stats.garbage_bytes)
        except (MsgStoreError, OSError):
            return None


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
    with contextlib.suppress(KeyboardInterrupt):  # the usual end of the command
        _watch(target, DirectorySampler(target, Files()), interval, out, once=once)


def _watch(target: StoreTarget, sampler: DirectorySampler, interval: float, out: output.Output, *, once: bool) -> None:
    """Print a snapshot and its changes once per interval."""
    console, totals = out.console, Totals()

    def screen(snapshot: DirectorySnapshot, change: SnapshotDiff | None) -> Group:
        return Group(_facts(target, snapshot, change, totals), Text(), _segments(console, snapshot, change))

    before = sampler.sample()
    live = None if once or out.as_json or not console.is_terminal else Live(console=console, auto_refresh=False, screen=True)
    with live or contextlib.nullcontext():
        if live:
            live.update(screen(before, None), refresh=True)
        while True:
            time.sleep(interval)
            after = sampler.sample()
            change = SnapshotDiff.between(before, after)
            totals.add(change, after)
            out.emit(_as_json(target, after, change))
            if live:
                live.update(screen(after, change), refresh=True)
            else:
                out.print(screen(after, change))
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


def _facts(target: StoreTarget, snapshot: DirectorySnapshot, change: SnapshotDiff | None, totals: Totals) -> Table:
    writer = f"process {snapshot.writer}" if snapshot.writer else "another process" if snapshot.is_open else "no process"
    rows: list[tuple[str, Any]] = [("open for writing", writer)]
    if figures := snapshot.index_figures:
        net = "" if not change or change.messages is None else f"  {change.messages / change.seconds:+,.0f}/s"
        live, garbage = sum(figures.live_bytes.values()), figures.garbage_bytes
        part = f" ({100 * garbage / snapshot.bytes_on_disk:.0f} %)" if snapshot.bytes_on_disk else ""
        rows += [("messages", f"{figures.messages:,}{net}"), ("live", output.size(live))]
        rows.append(("garbage", f"{output.size(garbage)}{part}"))
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
    marks: dict[str, Text] = {}
    if change:
        marks |= dict.fromkeys(change.shrunk, Text("cut", style="yellow"))
        marks |= dict.fromkeys(change.created, Text("created", style="green"))
    rows: list[tuple[Any, ...]] = []
    for name in newest[:fitting]:
        size, _ = snapshot.segments[name]
        live = snapshot.index_figures.live_bytes.get(name) if snapshot.index_figures else None
        garbage = "-" if live is None else f"{100 * max(0, size - live) / size:.0f} %" if size else "0 %"
        shown = output.right("-" if live is None else output.size(live))
        rows.append((name, output.size_cell(size), shown, output.right(garbage), marks.get(name, "")))
    if len(newest) > fitting:
        rows.append((f"... and {len(newest) - fitting:,} more", "", "", "", ""))
    return output.table(None, columns, rows)


def _rate(size: int, change: SnapshotDiff) -> str:
    return f"{output.size(int(size / change.seconds))}/s"
