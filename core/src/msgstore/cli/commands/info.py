"""Commands ``info`` and ``top``: show the state of a store once, or watch a store in use. They write nothing.

A snapshot of ``top`` reads names, sizes and times, and tests for an instant whether a writer holds the store's lock. It never
waits for a writer, and no writer waits for it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from msgstore.cli import options, output
from msgstore.contract import Capability, MsgStoreError, StoreError, StoreLocked
from msgstore.directory import SETTINGS, list_segments
from msgstore.engine.opening import open_configured
from msgstore.engine.state.clean_shutdown import CLEAN, ShutdownFiles, last_v1_file
from msgstore.engine.stats import StoreStats
from msgstore.files import UNFINISHED, Files
from msgstore.writer_lock import check_no_writer

_RECOVERY_TEXT = {
    "reconciled": "with the saved counts where the records agree with the index",
    "new": "empty",
    "trust": "as it was saved at the last clean shutdown",
    "tail": "from its index, and what was appended after the last commit",
    "rebuild": "by scanning every segment",
    "taken over": "from the index of the last opening",
    "live": "next to its writer: as of the last commit",
}
COUNTS_TEXT = {
    "index": "from the index",
    "given": "as given",
    "msg_store_index.ets": "from msg_store_index.ets",
    "msg_store_index.ets in part": "from msg_store_index.ets where it agrees, otherwise one for each record",
    "one each": "one for each record, live or dead",
}
_STATS = ("messages", "bytes_on_disk", "live_bytes", "garbage_bytes", "segments")
_RECOVERY = ("entered", "garbage", "missing", "counts", "kept", "revived", "distrust")
_HEADER_ROWS = 12
"""Screen lines of ``top`` that do not show segments."""
_MIN_SEGMENT_ROWS = 5
"""Segments that are shown on every screen."""


@click.command()
@options.read
@options.as_json
def info(store: options.StoreTarget, out: output.Output) -> None:
    """Show the content of a store, and how it would open. Writes nothing.

    \b
    Examples:
      msgstore info data/orders
      msgstore info orders --config msgstore.toml --json
    """
    target = store.find()
    with target.open("r") as opened:
        stats, segments = opened.stats(), opened.segments()
        settings, recovery = target.settings(), stats.recovery
        is_typed = Capability.TYPED_RECORDS in target.catalogue.format(target.config.format.name).capabilities
        facts = {
            "path": str(target.path),
            "index": target.config.index.name,
            "format": target.config.format.name,
            "record": target.config.record if is_typed else None,
            "body": target.config.body.name,
            "records": settings.records if settings else {},
            "known": settings is not None,
            **{name: getattr(stats, name) for name in _STATS},
            "formats": dict(Counter(segment.format for segment in segments)),
            "last_v1_file": last_v1_file((segment.number, Path(segment.file).suffix) for segment in segments),
            "client_refs": len(ShutdownFiles.read(Files(), target.path).client_refs()),
            "recovery": {
                "how": recovery.how,
                "scanned": len(recovery.scanned),
                "hinted": len(recovery.hinted),
                **{name: getattr(recovery, name) for name in _RECOVERY},
            },
            "quarantined": stats.quarantined,
            "damage": list(recovery.damaged),
        }
    out.emit(facts)
    if not out.as_json:
        out.print(output.facts(facts["path"], _rows(facts)))
    out.finish(damaged=bool(facts["quarantined"] or facts["damage"]))


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str | Text]]:
    recovery = facts["recovery"]
    bindings = ", ".join(f"{name} = {byte}" for name, byte in facts["records"].items())
    formats = ", ".join(f"{number} of {name}" for name, number in facts["formats"].items())
    yield "written by", "msgstore" if facts["known"] else "another program: never opened by msgstore"
    yield "backends", ", ".join(f"{key} {facts[key]}" for key in ("index", "format", "record", "body") if facts[key])
    if facts["record"]:  # else the format has no record types
        yield "record types", bindings or "the format's own"
    yield "messages", f"{facts['messages']:,}"
    for name, key in (("on disk", "bytes_on_disk"), ("live", "live_bytes"), ("garbage", "garbage_bytes")):
        yield name, output.size(facts[key])
    yield "segments", f"{facts['segments']:,}" + (f" ({formats})" if formats else "")
    yield "last v1 file", "none" if facts["last_v1_file"] is None else str(facts["last_v1_file"])
    yield "clients", f"{facts['client_refs']:,}"
    yield "would open", f"{_RECOVERY_TEXT[recovery['how']]} ({recovery['how']})"
    if recovery["entered"] or recovery["garbage"]:
        yield "", f"{output.plural(recovery['entered'], 'live record')}, {recovery['garbage']:,} dead or copies"
    if recovery["how"] == "rebuild":
        yield "counts", COUNTS_TEXT[recovery["counts"]]
    if recovery["missing"]:
        yield "", Text(f"{recovery['missing']:,} ids with references have no record", "red")
    if recovery["distrust"]:
        yield "", Text(counts_line(recovery), "red")
    earlier = (
        f"in {output.plural(facts['quarantined'], 'segment')}, found earlier. 'msgstore verify' lists what is damaged now."
    )
    for line in facts["damage"] or [earlier] * bool(facts["quarantined"]):
        yield "damage", Text(line, "red")


def counts_line(recovery: Mapping[str, Any]) -> str:
    """Return a line about saved counts that do not fit the directory."""
    return (
        f"the saved counts do not fit the directory: {recovery['distrust']}; "
        f"{output.plural(recovery['kept'], 'message')} with the saved counts, {recovery['missing']:,} missing, "
        f"{recovery['revived']:,} live again that may have been removed. The next opening for writing corrects the counts"
    )


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
    figures: tuple[StoreStats, Mapping[str, int]] | None
    """Statistics of the index as of its last commit, and the live bytes of each file. None if the index cannot be read without
    reading segments."""


def take_snapshot(target: options.StoreTarget, before: Snapshot | None = None) -> Snapshot:
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


def read_index(target: options.StoreTarget) -> tuple[StoreStats, Mapping[str, int]] | None:
    """Open the store read-only and return its figures, or None if that fails."""
    try:
        with open_configured(target.config, target.catalogue, mode="r") as store:
            return store.stats(), {segment.file: segment.live_bytes for segment in store.segments()}
    except (MsgStoreError, OSError):
        return None


def compare(target: options.StoreTarget, before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return the object of a refresh: the later snapshot, and the changes as far as sizes show them.

    Files that were created and deleted in between are not seen.
    """
    old, new, stats = before.segments, after.segments, after.figures and after.figures[0]
    seconds = max(after.at - before.at, 1e-9)
    grown = {name: size - old.get(name, 0) for name, size in new.items()}
    deleted = [name for name in old if name not in new]
    freed = sum(old[name] for name in deleted) - sum(size for size in grown.values() if size < 0)
    messages = stats.messages - before.figures[0].messages if stats and before.figures else None
    return {
        "path": str(target.path),
        "time": round(time.time(), 3),
        "seconds": round(seconds, 3),
        "open": after.writer is not None,
        "writer": after.writer.pid if after.writer else None,
        "messages": stats.messages if stats else None,
        "segments": len(new),
        "bytes_on_disk": sum(new.values()),
        "live_bytes": stats.live_bytes if stats else None,
        "garbage_bytes": stats.garbage_bytes if stats else None,
        "written_per_second": round(sum(size for size in grown.values() if size > 0) / seconds),
        "freed_per_second": round(freed / seconds),
        "messages_per_second": None if messages is None else round(messages / seconds),
        "created": [name for name in new if name not in old],
        "deleted": deleted,
        "shrunk": [name for name, size in grown.items() if size < 0],
        "unfinished": sum(name.endswith(UNFINISHED) for name in after.names),
    }


@click.command()
@options.watched
@click.option(
    "--interval", type=options.seconds, default="1s", show_default=True, metavar="TIME", help="Time between two refreshes."
)
@click.option("--once", is_flag=True, help="Refresh once, after one interval, and end.")
@options.as_json
def top(store: options.StoreTarget, interval: float, once: bool, out: output.Output) -> None:
    """Watch a store that another process uses: rates, segments, garbage, collections. Ctrl-C ends the command.

    Reads names and sizes in the directory, writes nothing, and never blocks the writer. Only the index knows messages and
    garbage: they are shown if it can be read.

    \b
    Examples:
      msgstore top data/orders
      msgstore top data/orders --interval 5s --json
    """
    target = store.find()
    sums: Counter[str] = Counter()
    is_screen = out.console.is_terminal and not (once or out.as_json)
    with (
        contextlib.suppress(KeyboardInterrupt),  # the usual end of the command
        Live(console=out.console, auto_refresh=False, screen=True) if is_screen else contextlib.nullcontext() as live,
    ):
        show = partial(live.update, refresh=True) if live else out.print
        before = take_snapshot(target)
        if live:
            show(_screen(out, before, compare(target, before, before), sums))
        while True:
            time.sleep(interval)
            after = take_snapshot(target, before)
            change = compare(target, before, after)
            sums.update({name: len(change[name]) for name in ("created", "deleted", "shrunk")})
            sums["freed"] += round(change["freed_per_second"] * change["seconds"])
            out.emit(change)
            show(_screen(out, after, change, sums))
            if once:
                return
            before = after


def _screen(out: output.Output, snapshot: Snapshot, change: Mapping[str, Any], sums: Mapping[str, int]) -> Group:
    """Return the figures, and the segments that changed last, as many as fit on the screen."""
    disk, pid = change["bytes_on_disk"], f"process {change['writer']}" if change["writer"] else "another process"
    figures: list[tuple[str, Any]] = [("messages", Text("only the index knows, and it cannot be read now", style="dim"))]
    if snapshot.figures:
        net = "" if change["messages_per_second"] is None else f"  {change['messages_per_second']:+,}/s"
        part = f" ({100 * change['garbage_bytes'] / disk:.0f} %)" if disk else ""
        figures = [("messages", f"{change['messages']:,}{net}"), ("live", output.size(change["live_bytes"]))]
        figures.append(("garbage", f"{output.size(change['garbage_bytes'])}{part}"))
    working = f"; {output.plural(change['unfinished'], 'unfinished file')}" if change["unfinished"] else ""
    rows = [
        ("open for writing", pid if change["open"] else "no process"),
        *figures,
        ("on disk", output.size(disk)),
        ("written", f"{output.size(change['written_per_second'])}/s"),
        ("freed", f"{output.size(change['freed_per_second'])}/s"),
        ("segments", f"{change['segments']:,}; {sums['created']:,} created, {sums['deleted']:,} deleted since the start"),
        ("collector", f"{sums['shrunk']:,} cut, {output.size(sums['freed'])} freed{working}"),
    ]
    # As a Text, a long title is wrapped. A refreshed screen would cut it.
    title = Text(f"{change['path']}  {time.strftime('%H:%M:%S', time.localtime(change['time']))}")
    newest = sorted(snapshot.segments.items(), key=lambda one: snapshot.names.get(one[0], (0, 0))[1], reverse=True)
    fitting = max(out.console.height - _HEADER_ROWS, _MIN_SEGMENT_ROWS) if out.console.is_terminal else _MIN_SEGMENT_ROWS
    live_bytes = snapshot.figures[1] if snapshot.figures else {}

    def row(name: str, size: int) -> dict[str, Any]:
        live = live_bytes.get(name)
        garbage = "-" if live is None else f"{100 * max(0, size - live) / max(size, 1):.0f} %"
        cells = {"live": "-" if live is None else output.size(live), "garbage": garbage}
        return {"name": name, "size": size, **{key: output.right(text) for key, text in cells.items()}}

    table = output.table(
        None, output.columns("changed_last=name size:bytes live garbage"), (row(*one) for one in newest[:fitting])
    )
    if len(newest) > fitting:
        table.add_row(f"... and {len(newest) - fitting:,} more")
    return Group(output.facts(title, rows), Text(), table)
