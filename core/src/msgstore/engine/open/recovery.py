"""Recovery steps: scan segments, check an index against them, complete it with their records, or rebuild it from all of them.

Opening never truncates a segment. One that does not end cleanly is sealed, and a damaged one is quarantined.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat

import attrs

from msgstore.contract import Columns, Index, SegmentScan, StoreError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.open.broker_counts import BrokerCounts, Found
from msgstore.engine.open.recovery_plan import Recovery, RecoveryProgress
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.locations import LIMIT, MASK, NUMBER_SHIFT, pack_location, pack_locations

log = logging.getLogger("msgstore.recovery")

CHAIN = 2
"""Records in a row after a torn end that make it damage instead of a write that was cut off."""


@attrs.frozen(eq=False)
class RecoveryRun:
    """State that the steps of one recovery share."""

    segments: Segments
    index: Index
    recovery: Recovery
    """Result, completed by each step."""
    progress: RecoveryProgress | None
    keeps_copy: bool
    """True if the old counts are saved in a file before any of them changes."""

    def metered(self, todo: Iterable[Segment]) -> Iterator[Segment]:
        """Yield segments, and report the bytes of those that are done."""
        sized = [(segment, segment.size) for segment in todo]
        done, total = 0, sum(size for _, size in sized)
        if self.progress and total:
            self.progress(0, total)
        for segment, size in sized:
            yield segment
            done += size
            if self.progress:
                self.progress(done, total)

    def scan(self, segment: Segment, start: int = 0) -> SegmentScan:
        """Read a segment from ``start`` on; notes on it, and in the result, what state it is in."""
        segments, recovery = self.segments, self.recovery
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
        becomes = (
            "the segment is kept as it is" if segment.quarantined else "a write was cut off; what stands before it is whole"
        )
        for offset, reason in spots:
            recovery.damaged.append(f"{segment.path.name} at offset {offset}: {reason}")
            log.warning("%s at offset %d: %s: %s", segment.path, offset, reason, becomes)
            if segment.quarantined:
                segments.telemetry.damage(segment.path.name, offset, reason)
        return scan

    def count_live(self) -> None:
        """Count the live records and bytes of each segment by the index."""
        for segment in self.segments:
            segment.live_count = segment.live_bytes = 0
        for _, location, _ in self.index.items():
            segment = self.segments.by_number[location >> NUMBER_SHIFT]
            segment.live_count += 1
            segment.live_bytes += location & MASK


def places(scan: SegmentScan) -> Iterator[tuple[bytes, int, int]]:
    """Return (id, offset, size) of each record, copies included."""
    return ((i, offset, size) for i, offset, size, _ in chain(scan.records.rows(), scan.duplicates.rows()))


def refute(run: RecoveryRun, changed: Iterable[Segment]) -> str | None:
    """Return what contradicts the index, or None if each segment has as many indexed records, copies included, as it counts.

    Damage does not refute the index: the segment is quarantined, and each read checks its record.
    """
    for segment in run.metered(changed):
        found = sum(run.index.get(i) == pack_location(segment.number, at, size) for i, at, size in places(run.scan(segment)))
        if found != segment.live_count and not segment.quarantined:
            return f"{segment.path.name} was changed, and does not hold what the index has in it"
    return None


def scan_tail(run: RecoveryRun, segment: Segment, start: int) -> None:
    """Enter the records from ``start`` on, after the last commit. An id in the index keeps its older record and its count."""
    if start == segment.size and segment.appendable:
        return  # nothing was appended since the commit: the file is not read
    scan, index = run.scan(segment, start), run.index
    new = [(i, o, s) for i, o, s, _ in scan.records.rows() if index.get(i) is None]
    index.enter([i for i, _, _ in new], [pack_location(segment.number, o, s) for _, o, s in new])
    segment.live_count += len(new)
    segment.live_bytes += sum(s for _, _, s in new)
    run.recovery.entered += len(new)
    run.recovery.garbage += len(scan.records) - len(new) + len(scan.duplicates)


def rebuild(run: RecoveryRun, counts: Mapping[bytes, int], default: int, broker: BrokerCounts | None = None) -> None:
    """Fill the index from the hint file or a scan of every segment. ``default`` is the count of ids that ``counts`` lacks.

    ``broker``: counts to use instead. They are compared with all records before the first is entered, so all records are in
    memory.

    Of copies in several files the highest-numbered file's wins, in one file the first. A rebuild that is stopped begins
    again: until the opening is complete, each commit leaves an index without a layout.
    """
    segments, index, recovery = run.segments, run.index, run.recovery
    recovery.how = "rebuild"
    recovery.scanned.clear()
    recovery.damaged.clear()
    index.clear()
    found_records: Iterable[Found] = _read_all(run)
    if broker is not None:
        found_records = everything = list(found_records)
        recovery.counts, decided = broker.decide(everything)
        counts, default = ({}, 1) if decided is None else (decided, 0)
    else:
        recovery.counts = "one each" if default else "given"
    counts = {msg_id: count for msg_id, count in counts.items() if count > 0}
    has_copies = False
    records = 0
    newest = max(segments.by_number)
    for segment, scan in found_records:
        has_copies |= not _enter(index, segment, scan.records, counts, default)
        records += len(scan.records) + len(scan.duplicates)
        if segment.number == newest and segment.appendable:
            segments.hints.hold(segment, scan.records)
        index.freeze({})
        index.commit()
    if has_copies:
        run.count_live()
    recovery.entered = len(index)
    recovery.garbage = records - recovery.entered
    if not default:
        recovery.missing = len(counts) - recovery.entered
    if recovery.missing:
        recovery.first_missing = next(msg_id for msg_id in counts if index.get(msg_id) is None)
        log.warning("%s: %d ids with references have no record", segments.directory, recovery.missing)
        for segment in segments:  # they may stand behind what looks like a write that was cut off
            segment.quarantined |= segment.torn


def _read_all(run: RecoveryRun) -> Iterator[Found]:
    """Yield the records of each segment, in number order. One segment is in memory at a time."""
    hints, newest = run.segments.hints, max(run.segments.by_number)
    for segment in run.metered(run.segments):
        hint = hints.load(segment)
        if hint is not None:
            run.recovery.hinted.append(segment.path.name)
            segment.appendable = True
            yield segment, SegmentScan(records=hint)
        else:
            scan = run.scan(segment)
            if segment.appendable and not scan.duplicates and segment.number != newest:
                hints.found(segment, (scan.records.ids, scan.records.offsets, scan.records.sizes))
            yield segment, scan


def _enter(index: Index, segment: Segment, found: Columns, counts: Mapping[bytes, int], default: int) -> bool:
    """Enter the records of one segment. Return False if there are copies: live records must then be counted again."""
    ids, locations = found.id_list(), pack_locations(segment.number, found.offsets, found.sizes)
    sizes: Sequence[int] = found.sizes
    references: list[int] | None = None
    if counts or not default:
        named = list(map(counts.get, ids, repeat(default)))
        if 0 in named:
            sizes = list(compress(sizes, named))
            ids, locations, named = list(compress(ids, named)), list(compress(locations, named)), list(filter(None, named))
        references = named if named.count(1) < len(named) else None
    segment.live_count = len(ids)
    segment.live_bytes = sum(sizes)
    before = len(index)
    index.enter(ids, locations, references)
    if len(index) - before == len(ids):
        return True
    first = dict(zip(reversed(ids), reversed(locations), strict=True))
    if len(first) < len(ids):
        again = None if references is None else [counts.get(msg_id, default) for msg_id in first]
        index.enter(list(first), first.values(), again)
    return False


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
