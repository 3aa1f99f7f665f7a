"""Commands ``verify`` and ``scrub``: check segments, index and counts. ``scrub`` is ``verify --resume``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output, stores
from msgstore.cli.checking import SegmentCheck, Throttle, check_segments
from msgstore.cli.commands.info import COUNTS_TEXT, counts_line
from msgstore.cli.scrub_state import DamagedSpan, ScrubState, StateFile
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.reports import SpanReport

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
    verdicts = [_verify(target, out, Throttle(rate), resume=resume, saves=saves) for target in targets]
    out.finish(damaged=not all(verdicts), not_read=others)


def _verify(target: stores.StoreTarget, out: output.Output, throttle: Throttle, *, resume: bool, saves: bool) -> bool:
    """Check one store and print the findings. Returns False if anything is wrong."""
    file = StateFile(Files(), target.path, writes=saves)
    state = file.read() if resume else ScrubState()  # always describes a whole number of segments
    resumed = state.behind if state.behind >= 0 else None
    begin, before = time.monotonic(), state.bytes
    rows = []
    out.emit(*(span.as_json(target.path) for span in state.spots))
    # A limited check may take hours: it works next to a writer if the index can be read live.
    with target.open("r", live="beside" if saves else "never") as opened:
        total = len(opened.segments())
        try:
            with out.progress("verifying") as progress:
                for check in check_segments(target, opened, throttle, state.behind):
                    state.add(check.number, len(check.entries), check.checked.bytes, check.checked.spans, check.findings)
                    file.write(state)
                    found = check.as_json()
                    out.emit(*(span.as_json(target.path) for span in check.checked.spans), found)
                    if not out.as_json:
                        rows.append(_row(check, found))
                    if progress:
                        progress(state.segments, total)
        except BaseException:
            file.write(state, now=True)
            raise
        summary = _summary(target, opened, state, resumed, time.monotonic() - begin)
    file.remove()
    if not out.as_json:
        columns = ("file", "format", "size", "live", "verified", "unreachable", "damage", "counts", "end")
        out.table(str(target.path), columns, rows)
        out.print()
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
        "damaged_segments": len(state.damaged_files),
        "damaged_spans": len(state.spots),
        "lost": [f"{lost.file}: {lost}" for lost in recovery.lost],
        "recovery": recovery.how,
        "counts": recovery.counts,
        "resumed_after": resumed,
        "seconds": round(seconds, 3),
        "ok": is_whole and (stats.messages == state.records or not is_fixed),
    }


def _row(check: SegmentCheck, found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        check.path.name,
        found["format"],
        output.size_cell(found["size"]),
        len(check.entries),
        found["verified"],
        output.count(len(found["unreachable"]), "bold red"),
        output.count(len(check.checked.spans), "bold red"),
        "agree" if found["counts_agree"] else f"{found['live_count']:,} expected",
        output.state(found["end"]["state"]) if found["found"] else "missing",
    )


def _show(target: stores.StoreTarget, out: output.Output, state: ScrubState, summary: dict[str, Any], size: int) -> None:
    if summary["distrust"]:
        out.print(counts_line(summary), "red")
    if state.spots or not (summary["lost"] or summary["distrust"] or state.findings):
        out.damage([_describe(target.path, span) for span in state.spots])
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


def _describe(directory: Path, span: DamagedSpan) -> SpanReport:
    """Return a span for people: its reason names the message of a live record."""
    reason = span.reason if span.msg_id is None else f"{span.reason}: message {span.msg_id}"
    return SpanReport(str(directory / span.file), span.offset, span.size, reason)
