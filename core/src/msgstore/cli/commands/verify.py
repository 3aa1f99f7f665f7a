"""Commands ``verify`` and ``scrub``: check segments, index and counts. ``scrub`` is ``verify --resume``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import click

from msgstore.cli import options, output, stores
from msgstore.cli.checking import SegmentCheck, check_segments
from msgstore.cli.commands.info import COUNTS_TEXT, counts_line
from msgstore.cli.scrub_state import STATE, ScrubState, load_state, save_state
from msgstore.directory import SETTINGS
from msgstore.engine.store import Store
from msgstore.files import Files

SAVE_INTERVAL_SECONDS = 1.0
"""Time between two writes of the state. A killed check repeats at most this much."""
_EXACT_COUNTS = ("index", "given", "msg_store_index.ets")
"""Origins of counts with which a record is known to be a live message."""

_rate = click.option(
    "--rate", type=options.size, metavar="SIZE", help="Read at most this many bytes per second, such as 20MiB."
)


@click.command()
@stores.read
@_rate
@click.option("--resume", is_flag=True, help="Continue where a check with --rate or --resume was stopped.")
@options.as_json
def verify(store: stores.StoreArgument, rate: int | None, resume: bool, out: output.Output) -> None:
    """Check segments, index and counts against one another, and read every live message. Writes no data.

    Every index entry must have a reference and a record of its id and size, inside its segment and without overlap. The row of
    each segment must have the counts of the index. In a broker's directory, every store is checked.

    With --rate or --resume, the position is kept in msgstore-scrub.json in the store's directory until the check ends. Nothing
    is written to a broker's directory.

    \b
    Examples:
      msgstore verify data/orders
      msgstore verify data/orders --rate 20MiB --resume
      msgstore verify msg_store_persistent --refcounts counts.csv
    """
    _verify_all(store, out, rate, resume=resume, saves=resume or rate is not None)


@click.command()
@stores.read
@_rate
@click.option("--restart", is_flag=True, help="Start at the first segment, even if a stopped check could be resumed.")
@options.as_json
def scrub(store: stores.StoreArgument, rate: int | None, restart: bool, out: output.Output) -> None:
    """The same as verify --resume.

    \b
    Examples:
      msgstore scrub data/orders --rate 20MiB
      msgstore scrub data/orders --restart --json
    """
    _verify_all(store, out, rate, resume=not restart, saves=True)


def _verify_all(store: stores.StoreArgument, out: output.Output, rate: int | None, *, resume: bool, saves: bool) -> None:
    targets, others = store.find_all()
    verdicts = [_verify(target, out, rate, resume=resume, saves=saves) for target in targets]
    out.finish(damaged=not all(verdicts), not_read=others)


_COLUMNS = output.columns(
    "file=path:name format size:bytes live verified unreachable damage counts end",
    format=lambda check: check.segment.format if check.segment else "?",
    live=lambda check: len(check.entries),
    verified=lambda check: len(check.entries) - len(check.unreachable),
    unreachable=lambda check: output.count(len(check.unreachable), "bold red"),
    damage=lambda check: output.count(len(check.spans), "bold red"),
    counts=lambda check: "agree" if check.counts_agree else f"{check.counts[0]:,} expected",
    end=lambda check: output.state(check.scan.end.state) if check.scan else "missing",
)


def _verify(target: stores.StoreTarget, out: output.Output, rate: int | None, *, resume: bool, saves: bool) -> bool:
    """Check one store and print the findings. Returns False if anything is wrong."""
    files = Files()
    keeps = saves and (target.path / SETTINGS).exists()  # nothing is written to a broker's directory
    state = load_state(files, target.path) if resume else ScrubState()  # always describes a whole number of segments
    resumed = state.behind if state.behind >= 0 else None
    begin = time.monotonic()
    before = state.bytes

    def checks(store: Store) -> Iterator[SegmentCheck]:
        nonlocal keeps
        total, saved = len(store.segments()), begin
        with out.progress("verifying") as progress:
            for check in check_segments(target, store, rate, state.behind):
                state.add(check.number, len(check.entries), check.read, check.spans, check.findings)
                if keeps and time.monotonic() - saved >= SAVE_INTERVAL_SECONDS:
                    keeps = save_state(files, target.path, state)
                    saved = time.monotonic()
                out.emit(*(span.as_json(target.path) for span in check.spans))
                if progress:
                    progress(state.segments, total)
                yield check

    out.emit(*(span.as_json(target.path) for span in state.spots))
    # A limited check may take hours: it works next to a writer if the index can be read live.
    with target.open("r", live="beside" if saves else "never") as opened:
        try:
            out.rows(str(target.path), _COLUMNS, checks(opened), as_json=lambda check: check.as_json())
        except BaseException:
            if keeps:
                save_state(files, target.path, state)
            raise
        summary = _summary(target, opened, state, resumed, time.monotonic() - begin)
    if keeps:
        with contextlib.suppress(OSError):  # one that cannot be removed does no harm: the next check replaces it
            files.unlink(target.path / STATE)
    out.print()
    if not out.as_json:
        _show(target, out, state, summary, state.bytes - before)
    out.emit(summary)
    return bool(summary["ok"])


def _summary(
    target: stores.StoreTarget, store: Store, state: ScrubState, resumed: int | None, seconds: float
) -> dict[str, Any]:
    stats = store.stats()
    recovery = stats.recovery
    # The store may change between two parts of a check, and next to a writer. Then its counts need not agree.
    is_fixed = resumed is None and recovery.how != "live"
    is_whole = not (recovery.missing or recovery.lost or recovery.revived or state.spots or state.findings)
    return {
        "kind": "summary",
        "path": str(target.path),
        "segments": state.segments,
        "messages": state.records,
        "counted": stats.messages,
        "records": state.records,
        "bytes": state.bytes,
        "verified": state.records - state.unreachable,
        "unreachable": state.unreachable,
        "findings": len(state.findings),
        "missing": recovery.missing,
        "kept": recovery.kept,
        "revived": recovery.revived,
        "distrust": recovery.distrust,
        "damaged_segments": len({span.file for span in state.spots} | {finding.file for finding in state.findings}),
        "damaged_spans": len(state.spots),
        "lost": [f"{lost.file}: {lost}" for lost in recovery.lost],
        "recovery": recovery.how,
        "counts": recovery.counts,
        "resumed_after": resumed,
        "seconds": round(seconds, 3),
        "ok": is_whole and (stats.messages == state.records or not is_fixed),
    }


def _show(target: stores.StoreTarget, out: output.Output, state: ScrubState, summary: dict[str, Any], size: int) -> None:
    if summary["distrust"]:
        out.print(counts_line(summary), "red")
    if state.spots or not (summary["lost"] or summary["distrust"] or state.findings):
        out.damage([span.as_report(target.path) for span in state.spots])
    for finding in state.findings[: output.MAX_LISTED]:
        where = "" if finding.msg_id is None else f" at offset {finding.offset}: {finding.msg_id}"
        out.print(f"{finding.file}{where}: {finding.what}: {finding.detail}", "red")
    out.more(len(state.findings))
    for line in summary["lost"]:
        out.print(line, "red")
    if summary["resumed_after"] is None and summary["counted"] != summary["messages"]:
        out.print(f"the index counts {summary['counted']:,} entries and lists {summary['messages']:,}", "red")
    if summary["missing"]:
        out.print(f"{output.plural(summary['missing'], 'id')} with references without a record", "red")
    noun = "live message" if summary["counts"] in _EXACT_COUNTS else "record"
    counts = f"; counts: {COUNTS_TEXT[summary['counts']]}" if summary["recovery"] == "rebuild" else ""
    pace = f", {output.size(int(size / summary['seconds']))}/s" if summary["seconds"] >= 1 else ""
    verdict = f"{summary['verified']:,} of {output.plural(summary['messages'], noun)} verified ({summary['recovery']}{counts})"
    read = f"{output.plural(state.segments, 'segment')}, {output.size(state.bytes)}{pace}"
    out.print(f"{verdict}; {read}", "green" if summary["ok"] else "bold red")
