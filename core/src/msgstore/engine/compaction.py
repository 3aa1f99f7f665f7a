"""Compaction in place: move records from the end of a segment into its gaps, then cut the tail.

Order, so that a crash at any instant leaves every live record readable and the chain of records whole:

1. the index is committed: what is dead is dead on disk before its bytes are overwritten;
2. each gap is prepared: it hides what is about to be written inside it;
3. the moved records are written inside;
4. each gap is sealed: the records appear, as copies of those at the end;
5. the index is swapped to the copies and committed;
6. the tail is cut.

There is a sync after 2, 3, 4 and 6, whatever the store's durability: a power loss may cost what was written last, but not
what was confirmed long ago and happens to be moved. A segment in which anything is damaged, or in which a live
record is not found, is left exactly as it is and quarantined.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import attrs

from msgstore.contract.formats import GapFill, SegmentScan, Write
from msgstore.contract.indexes import Index
from msgstore.contract.locations import pack
from msgstore.engine.checkpoint import pack_row, row_key
from msgstore.engine.ledger import Ledger
from msgstore.engine.moves import Live, plan
from msgstore.engine.segments import Segment

log = logging.getLogger("msgstore.compaction")


@attrs.frozen
class Collected:
    """What happened to one segment. Sizes in bytes."""

    file: str
    size_before: int
    size_after: int
    """0 if the segment was deleted."""
    moved_records: int = 0
    moved_bytes: int = 0
    written: int = 0
    """Bytes written: the moved records, and what holes cost."""
    skipped: str | None = None
    """Why it was left as it is."""


def live_records(index: Index, segment: Segment, scan: SegmentScan) -> list[Live]:
    """The records of a scan that the index points to, by offset. A later copy counts if it is the one pointed to."""
    number = segment.number
    found = [
        Live(offset, size, msg_id)
        for columns in (scan.records, scan.duplicates)
        for msg_id, offset, size, _ in columns.rows()
        if index.get(msg_id) == pack(number, offset, size)
    ]
    return sorted(found, key=lambda record: record.offset)


def unsafe(segment: Segment, scan: SegmentScan, live: list[Live], expected: int) -> str | None:
    """Why a segment must not be rewritten or deleted after this scan; None if it may."""
    torn_write = scan.end.state == "torn" and not segment.quarantined  # never finished, and nothing stands behind it
    if scan.end.state != "clean" and not torn_write:
        return f"its end is {scan.end.state} at offset {scan.end.offset}" + (f" ({scan.end.reason})" if scan.end.reason else "")
    if scan.damage:
        return f"it is damaged at offset {scan.damage[0].offset} ({scan.damage[0].reason})"
    if len(live) != expected:
        return f"{expected - len(live)} of its {expected} live records are not where the index says"
    return None


def quarantine(ledger: Ledger, segment: Segment, reason: str) -> None:
    log.warning("%s: %s; the segment is kept as it is and not collected", segment.path, reason)
    segment.quarantined = True
    ledger.segments.hints.drop(segment)  # it says nothing of damage
    ledger.touch(segment)


def compact(ledger: Ledger, segment: Segment) -> Collected:
    """Compact one segment that is not the current one. With ``flushing``, without the lock."""
    files, form = ledger.segments.files, segment.form.format
    before = segment.size
    with ledger.segments.errors(segment), files.view(segment.path) as data:
        scan = form.scan(data)
        with ledger.lock:
            live, expected = live_records(ledger.index, segment, scan), segment.live_count
        reason = unsafe(segment, scan, live, expected)
        if reason:
            quarantine(ledger, segment, reason)
            return Collected(segment.path.name, before, before, skipped=reason)
        todo = plan(form, live)
        fills = [
            form.fill_gap(gap.offset, gap.size, [data[record.offset : record.end] for record in gap.moved]) for gap in todo.gaps
        ]
    steps = _steps(fills)
    if todo.end == before and not any(steps):
        return Collected(segment.path.name, before, before)

    with ledger.lock:
        ledger.forget_lingering(segment)
        segment.sealed_mtime_ns = None
        row = {row_key(segment): pack_row(segment, compacting=True)}
    ledger.segments.hints.drop(segment, lasting=True)
    ledger.commit(row)
    with ledger.segments.errors(segment):
        fd = files.open_write(segment.path)
        ledger.segments.epoch += 1
        try:
            for writes in steps:
                for offset, chunk in writes:
                    files.pwrite(fd, chunk, offset)
                if writes:
                    files.sync(fd)
            moves = [move for gap in todo.gaps for move in gap.targets()]
            _swap(ledger, segment, moves)
            with ledger.lock:
                segment.size = todo.end  # nobody maps what is about to go
                ledger.segments.epoch += 1
                ledger.segments.unmap(segment.number)
            files.truncate(fd, todo.end)
            files.sync(fd)
        finally:
            try:
                segment.size, segment.sealed_mtime_ns = files.size_and_mtime(fd)
            finally:
                files.close(fd)
    moved_to = {record.offset: target for record, target in moves}
    ledger.segments.hints.rewrite(segment, ((moved_to.get(r.offset, r.offset), r.size, r.msg_id) for r in live))
    ledger.touch(segment)
    ledger.commit()
    written = sum(len(chunk) for writes in steps for _, chunk in writes)
    moved = sum(record.size for record, _ in moves)
    return Collected(segment.path.name, before, segment.size, len(moves), moved, written)


def _steps(fills: Iterable[GapFill]) -> list[list[Write]]:
    """The writes of all gaps, step by step."""
    steps: list[list[Write]] = [[], [], []]
    for fill in fills:
        for writes, step in zip(steps, (fill.prepare, fill.inside, fill.seal), strict=True):
            writes += step
    return steps


def _swap(ledger: Ledger, segment: Segment, moves: Iterable[tuple[Live, int]]) -> None:
    number = segment.number
    moves = list(moves)
    ids = [record.msg_id for record, _ in moves]
    old = [pack(number, record.offset, record.size) for record, _ in moves]
    new = [pack(number, target, record.size) for record, target in moves]
    with ledger.lock:
        ledger.index.relocate(ids, old, new)
        ledger.forget_lingering(segment)  # what died since lies where it was
        # Still marked as being compacted: its file is longer than it will be.
        row = {row_key(segment): pack_row(segment, compacting=True)}
    ledger.commit(row)
