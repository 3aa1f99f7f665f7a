"""What a store knows when it opens: from the index if that still speaks of these segments, else by scanning.

``trust``   the index was saved at a clean stop, and nothing has changed since: nothing is read.
``tail``    the index is persistent and the stop was dirty: only what came after its last commit is scanned.
``rebuild`` anything else: every segment is scanned; reference counts come from the caller, or are one for each id.

Opening never shortens a segment that it found. One whose end is not clean is sealed; one in which damage was found is
quarantined besides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Literal

import attrs

from msgstore.contract import Index, SegmentScan, StoreError
from msgstore.contract.locations import LIMIT, MAX_REFERENCES, pack
from msgstore.engine import checkpoint
from msgstore.engine.checkpoint import Row
from msgstore.engine.segments import Segment, Segments
from msgstore.engine.shutdown import Leftovers

log = logging.getLogger("msgstore.recovery")

CHAIN = 2
"""Records in a row behind a torn end that make it damage instead of a write that was cut off."""
BATCH = 100_000
"""Entries that are handed from one index to another at a time."""


@attrs.define
class Recovery:
    """How a store came up; ``store.stats().recovery``."""

    how: Literal["new", "trust", "tail", "rebuild", "taken over"] = "new"
    scanned: list[str] = attrs.field(factory=list)
    """Names of the segments that were read, in whole or from their last commit on."""
    entered: int = 0
    """Records that were found by scanning and are live."""
    garbage: int = 0
    """Records that were found by scanning and that no reference count names, or that are copies."""
    missing: int = 0
    """Ids that the given reference counts name and that no segment holds."""
    damaged: list[str] = attrs.field(factory=list)
    """One line for each damaged segment: file, offset, reason."""


@attrs.frozen
class Plan:
    """A trusted index: what is left to scan."""

    tails: list[tuple[Segment, int]]
    """Segments to read from an offset on."""
    verify: list[Segment]
    """Segments whose time, but not size, has changed: trusted if every entry is found where it says."""


def judge(state: Mapping[bytes, bytes], segments: Segments, leftovers: Leftovers) -> Plan | None:
    """Whether the index's ``state`` speaks of the segments that are there; None if it must be rebuilt.

    Another program that ran in between shows by one of: sizes, names, a ``clean.dot`` that is not ours, or none.
    """
    if state.get(checkpoint.LAYOUT_KEY) != checkpoint.LAYOUT:
        return None
    saved = state.get(checkpoint.CLEAN_KEY)
    if leftovers.clean not in (None, saved) or saved not in (None, leftovers.clean, leftovers.pending):
        return None
    try:
        rows = checkpoint.rows(state)
    except ValueError:
        return None
    plan = Plan([], [])
    names = {segment.path.name: segment for segment in segments}
    for name, row in rows.items():
        segment = names.pop(name, None)
        if segment is None:
            if row.live_count:
                return None
        elif not _agrees(segment, row, plan):
            return None
        else:
            _apply(segment, row)
    newest = max((segment.number for segment in segments if segment.path.name in rows), default=-1)
    if any(saved is not None or segment.number < newest for segment in names.values()):
        return None
    plan.tails.extend((segment, 0) for segment in names.values())
    return plan


def _agrees(segment: Segment, row: Row, plan: Plan) -> bool:
    if row.compacting:
        plan.verify.append(segment)
        return segment.size <= row.size
    if row.mtime_ns is None:
        plan.tails.append((segment, row.size))
        return segment.size >= row.size
    if segment.sealed_mtime_ns != row.mtime_ns:
        plan.verify.append(segment)
    return segment.size == row.size


def _apply(segment: Segment, row: Row) -> None:
    segment.live_count, segment.live_bytes = row.live_count, row.live_bytes
    segment.appendable, segment.quarantined = row.appendable, row.quarantined


def verify(segments: Segments, index: Index, segment: Segment, recovery: Recovery) -> bool:
    """True if as many records as the segment's row counts are where the index says; a copy counts as well.

    Damage is no reason to distrust the whole index: then the segment is quarantined, and each read checks its record.
    """
    scan = _scan(segments, segment, 0, recovery)
    number = segment.number
    found = sum(
        index.get(msg_id) == pack(number, offset, size)
        for columns in (scan.records, scan.duplicates)
        for msg_id, offset, size, _ in columns.rows()
    )
    return found == segment.live_count or segment.quarantined


def scan_tail(segments: Segments, index: Index, segment: Segment, start: int, recovery: Recovery) -> None:
    """Enter what was appended after the last commit; an id that the index knows keeps its older copy and its count."""
    scan = _scan(segments, segment, start, recovery)
    new = [(i, o, s) for i, o, s, _ in scan.records.rows() if index.get(i) is None]
    recovery.garbage += len(scan.records) - len(new) + len(scan.duplicates)
    _enter(index, segment, new, None, recovery)


def rebuild(segments: Segments, index: Index, counts: Mapping[bytes, int] | None, recovery: Recovery) -> None:
    """Scan everything. Of copies in several files the highest-numbered file's wins, in one file the first."""
    index.clear()
    recovery.how = "rebuild"
    for segment in reversed(list(segments)):
        segment.live_count = segment.live_bytes = 0
        scan = _scan(segments, segment, 0, recovery)
        new = [
            (i, o, s) for i, o, s, _ in scan.records.rows() if (counts is None or counts.get(i, 0) > 0) and index.get(i) is None
        ]
        recovery.garbage += len(scan.records) - len(new) + len(scan.duplicates)
        _enter(index, segment, new, counts, recovery)
        index.commit({})
    if counts is not None:
        recovery.missing = sum(1 for i, count in counts.items() if count > 0 and index.get(i) is None)
        if recovery.missing:
            log.warning("%s: %d ids with references have no record", segments.directory, recovery.missing)
            for segment in segments:  # they may stand behind what looks like a write that was cut off
                segment.quarantined |= segment.torn


def take_over(segments: Segments, index: Index, other: Index) -> None:
    """Copy every entry of the index that the directory was last opened with."""
    index.clear()
    batch: list[tuple[bytes, int, int]] = []
    for entry in other.items():
        batch.append(entry)
        if len(batch) == BATCH:
            index.enter(*zip(*batch, strict=True))
            batch.clear()
    if batch:
        index.enter(*zip(*batch, strict=True))
    log.info("%s: took over %d entries from the index of the last opening", segments.directory, len(index))


def sum_counts(refcounts: Iterable[tuple[bytes, int]]) -> dict[bytes, int]:
    """Reference-count deltas, added up. Raises ValueError for what is not an id and a whole number."""
    counts: dict[bytes, int] = {}
    for msg_id, count in refcounts:
        if not isinstance(msg_id, bytes) or len(msg_id) != 16 or not isinstance(count, int):
            raise ValueError(f"refcounts: ({msg_id!r}, {count!r}) is not a 16-byte id and an integer")
        counts[msg_id] = counts.get(msg_id, 0) + count
        if counts[msg_id] > MAX_REFERENCES:
            raise ValueError(f"refcounts: {msg_id.hex()} has {counts[msg_id]} references; at most {MAX_REFERENCES} are counted")
    return counts


def _scan(segments: Segments, segment: Segment, start: int, recovery: Recovery) -> SegmentScan:
    with segments.errors(segment), segments.files.view(segment.path) as data:
        scan = segment.form.format.scan(data, start=start)
        end = scan.end
        behind = None if end.state == "clean" else segment.form.format.find_chain(data, end.offset + 1, CHAIN)
        segment.size = len(data)
    recovery.scanned.append(segment.path.name)
    if segment.size >= LIMIT:
        raise StoreError(f"{segment.path}: has {segment.size} bytes; segments of 1 TiB and more are not supported")
    segment.quarantined |= end.state == "corrupt" or bool(scan.damage) or behind is not None
    segment.torn = end.state == "torn"
    segment.appendable = end.state == "clean" and not segment.quarantined and scan.header in (None, "ok")
    spots = [(damage.offset, damage.reason) for damage in scan.damage]
    if end.state != "clean":
        spots.append((end.offset, end.reason or end.state))
    becomes = "the segment is kept as it is" if segment.quarantined else "a write was cut off; what stands before it is whole"
    for offset, reason in spots:
        recovery.damaged.append(f"{segment.path.name} at offset {offset}: {reason}")
        log.warning("%s at offset %d: %s: %s", segment.path, offset, reason, becomes)
    return scan


def _enter(
    index: Index,
    segment: Segment,
    records: list[tuple[bytes, int, int]],
    counts: Mapping[bytes, int] | None,
    recovery: Recovery,
) -> None:
    number = segment.number
    ids = [msg_id for msg_id, _, _ in records]
    references = None if counts is None else [counts[msg_id] for msg_id in ids]
    index.enter(ids, [pack(number, offset, size) for _, offset, size in records], references)
    segment.live_count += len(records)
    segment.live_bytes += sum(size for _, _, size in records)
    recovery.entered += len(records)
