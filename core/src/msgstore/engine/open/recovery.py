"""Recovery: scan segments, and fill an index from them. :mod:`msgstore.engine.open.recovery_plan` says when.

Opening never truncates a segment. One that does not end cleanly is sealed, and a damaged one is quarantined.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress, repeat

from msgstore.contract import Index, SegmentScan, StoreError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.open.broker_counts import BrokerCounts, Found
from msgstore.engine.open.recovery_plan import ProgressMeter, Recovery, RecoveryProgress
from msgstore.engine.segment.hint_file import Hint
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.locations import LIMIT, MASK, NUMBER_SHIFT, pack_location

log = logging.getLogger("msgstore.recovery")

CHAIN = 2
"""Records in a row after a torn end that make it damage instead of a write that was cut off."""
BATCH = 100_000
"""Entries that are handed from one index to another at a time."""


def verify(segments: Segments, index: Index, segment: Segment, recovery: Recovery) -> bool:
    """Return True if the segment has as many indexed records, copies included, as its row counts.

    Damage does not refute the index: the segment is quarantined, and each read checks its record.
    """
    scan = scan_segment(segments, segment, 0, recovery)
    number = segment.number
    found = sum(
        index.get(msg_id) == pack_location(number, offset, size)
        for columns in (scan.records, scan.duplicates)
        for msg_id, offset, size, _ in columns.rows()
    )
    return found == segment.live_count or segment.quarantined


def scan_tail(segments: Segments, index: Index, segment: Segment, start: int, recovery: Recovery) -> None:
    """Enter the records from ``start`` on, after the last commit. An id in the index keeps its older record and its count."""
    if start == segment.size and segment.appendable:
        return  # nothing was: the file need not be read at all
    scan = scan_segment(segments, segment, start, recovery)
    new = [(i, o, s) for i, o, s, _ in scan.records.rows() if index.get(i) is None]
    index.enter([i for i, _, _ in new], [pack_location(segment.number, o, s) for _, o, s in new])
    segment.live_count += len(new)
    segment.live_bytes += sum(s for _, _, s in new)
    recovery.entered += len(new)
    recovery.garbage += len(scan.records) - len(new) + len(scan.duplicates)


def rebuild(
    segments: Segments,
    index: Index,
    counts: Mapping[bytes, int] | None,
    recovery: Recovery,
    progress: RecoveryProgress | None = None,
    broker: BrokerCounts | None = None,
) -> None:
    """Fill the index from the hint file or a scan of every segment.

    ``broker``: counts to use instead of ``counts``. They are compared with all records before the first is entered, so all
    records are in memory.

    Of copies in several files the highest-numbered file's wins, in one file the first. A rebuild that is stopped begins
    again: until the opening is complete, each commit leaves an index without a layout.
    """
    index.clear()
    recovery.how = "rebuild"
    recovery.counts = "one each" if counts is None else "given"
    found_records: Iterable[Found] = _read_all(segments, recovery, ProgressMeter(segments, progress))
    if broker is not None:
        found_records = everything = list(found_records)
        recovery.counts, counts = broker.decide(everything)
    wanted = counts if counts is None else {msg_id: count for msg_id, count in counts.items() if count > 0}
    copies = False
    records = 0
    newest = max(segments.by_number)
    for segment, found, copied in found_records:
        copies |= not _enter(index, segment, found, wanted)
        records += found.count + copied
        if segment.number == newest and segment.appendable:
            segments.hints.hold(segment, found)
        index.freeze({})
        index.commit()
    if copies:
        count_live(segments, index)
    recovery.entered = len(index)
    recovery.garbage = records - recovery.entered
    if wanted is not None:
        recovery.missing = len(wanted) - recovery.entered
        if recovery.missing:
            recovery.first_missing = next(msg_id for msg_id in wanted if index.get(msg_id) is None)
            log.warning("%s: %d ids with references have no record", segments.directory, recovery.missing)
            for segment in segments:  # they may stand behind what looks like a write that was cut off
                segment.quarantined |= segment.torn


def _read_all(segments: Segments, recovery: Recovery, meter: ProgressMeter) -> Iterator[Found]:
    """Yield the records of each segment, in number order. One segment is in memory at a time."""
    newest = max(segments.by_number)
    for segment in segments:
        found = segments.hints.load(segment)
        if found is not None:
            recovery.hinted.append(segment.path.name)
            segment.appendable = True
            yield segment, found, 0
        else:
            scan = scan_segment(segments, segment, 0, recovery)
            found, copied = Hint.of(scan.records), len(scan.duplicates)
            if segment.appendable and not copied and segment.number != newest:
                segments.hints.found(segment, found)
            yield segment, found, copied
        meter.add(segment)


def _enter(index: Index, segment: Segment, found: Hint, counts: Mapping[bytes, int] | None) -> bool:
    """Enter the records of one segment. Return False if there are copies: live records must then be counted again."""
    ids, locations, sizes = found.id_list(), found.locations(segment.number), None
    references: list[int] | None = None
    if counts is not None:
        named = list(map(counts.get, ids, repeat(0)))
        if 0 in named:
            sizes = list(compress(found.each_size(), named))
            ids, locations, named = list(compress(ids, named)), list(compress(locations, named)), list(filter(None, named))
        references = named if named.count(1) < len(named) else None
    segment.live_count = len(ids)
    segment.live_bytes = found.total() if sizes is None else sum(sizes)
    before = len(index)
    index.enter(ids, locations, references)
    if len(index) - before == len(ids):
        return True
    first = dict(zip(reversed(ids), reversed(locations), strict=True))
    if len(first) < len(ids):
        again = None if references is None or counts is None else [counts[msg_id] for msg_id in first]
        index.enter(list(first), first.values(), again)
    return False


def count_live(segments: Segments, index: Index) -> None:
    """Count the live records and bytes of each segment by the index."""
    for segment in segments:
        segment.live_count = segment.live_bytes = 0
    for _, location, _ in index.items():
        segment = segments.by_number[location >> NUMBER_SHIFT]
        segment.live_count += 1
        segment.live_bytes += location & MASK


def copy_entries(segments: Segments, index: Index, other: Index) -> None:
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
    """Return the sums of reference-count deltas by id. Raises ValueError for an invalid id or number, or too large a sum."""
    counts: dict[bytes, int] = {}
    for msg_id, count in refcounts:
        if not isinstance(msg_id, bytes) or len(msg_id) != 16 or not isinstance(count, int):
            raise ValueError(f"refcounts: ({msg_id!r}, {count!r}) is not a 16-byte id and an integer")
        counts[msg_id] = counts.get(msg_id, 0) + count
    if max(counts.values(), default=0) > MAX_REFERENCES:
        msg_id, count = next(pair for pair in counts.items() if pair[1] > MAX_REFERENCES)
        raise ValueError(f"refcounts: {msg_id.hex()} has {count} references; at most {MAX_REFERENCES} are counted")
    return counts


def scan_segment(segments: Segments, segment: Segment, start: int, recovery: Recovery) -> SegmentScan:
    """Read a segment from ``start`` on; notes on it, and in ``recovery``, what state it is in."""
    with segments.errors(segment), segments.files.view(segment.path) as data:
        scan = segment.form.scan(data, start=start)
        end = scan.end
        with segment.form.attribute_errors("find_chain"):
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
        if segment.quarantined:
            segments.telemetry.damage(segment.path.name, offset, reason)
    return scan
