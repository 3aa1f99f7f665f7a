"""GC context: what the actions of a collection work with: locks, pinned segments and their live records, relocation.

A collection runs next to writers, readers and removers. It holds the GC lock throughout, and the flush lock in short slices.
Lock order: GC lock, flush lock, state lock.

A segment is pinned under the state lock. While it is pinned it is not deleted, no dead record in it is revived, and the
locations of records that die are collected. So the live records that a scan finds without the lock, plus those that died
since, must be exactly the records that were alive at the pin. Otherwise index and segment contradict each other, and nothing
may be overwritten.

Relocation points index entries to the new locations of moved records. The bytes at the old locations are truncated or deleted
afterwards. So the index is not trusted: if an entry is wrong, all entries get their old locations back, and the collection
ends with the segment unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import eq, itemgetter

import attrs

from msgstore.contract import BrokenPlugin, Buffer, Columns
from msgstore.contract.events import CollectionOutcome
from msgstore.engine.segment.segment import Segment, damaged_index
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.locations import MASK, pack_locations
from msgstore.plugins.blame import PLUGIN_FAILED
from msgstore.plugins.loader import comes_from_outside
from msgstore.scan import OpenFormat
from msgstore.scan.formats import scan_checked

RELOCATED_AT_ONCE = 5000
"""Entries that are relocated under one hold of the state lock: some milliseconds."""


@attrs.frozen
class CollectionResult:
    """Result of one segment. Sizes in bytes."""

    file: str
    """Name of the segment."""
    size_before: int
    """Size of the file."""
    size_after: int
    """Size of the file; 0 if it was deleted."""
    moved_records: int = 0
    """Number of live records that were moved."""
    moved_bytes: int = 0
    """Size of these records."""
    written: int = 0
    """Bytes written: moved records and hole headers."""
    skipped: str | None = None
    """Why the segment was skipped, or None."""
    outcome: CollectionOutcome = "compacted"
    """What was done: ``compacted``, ``combined``, ``migrated``, ``dropped``, ``deleted`` or ``none``."""
    dropped: int = 0
    """Live messages that the policy deleted."""


@attrs.frozen
class GcContext:
    """Parts of the store that the actions of a collection use. One instance per open store."""

    accounting: LiveAccounting
    form: OpenFormat
    """Format of new copies."""
    size_limit: int

    @property
    def segments(self) -> Segments:
        return self.accounting.segments

    def commit(self) -> None:
        """Commit all changes so far, records that the index points to included. Takes the flush lock. Raises StoreIOError."""
        with self.accounting.flush_lock, self.accounting.change:
            self.segments.sync_written()
            self.accounting.commit()


class InconsistentSegment(Exception):
    """Raised for a segment that must not be rewritten or deleted. ``damaged``: quarantine it."""

    def __init__(self, segment: Segment, reason: str, *, damaged: bool = True) -> None:
        super().__init__(reason)
        self.segment, self.reason, self.damaged = segment, reason, damaged


@contextlib.contextmanager
def blamed(segment: Segment, form: OpenFormat, call: str) -> Iterator[None]:
    """Enclose a call of a format. Exceptions of the format become InconsistentSegment, with the name of its plugin."""
    try:
        with form.attribute_errors(call):
            yield
    except BrokenPlugin as error:
        raise InconsistentSegment(segment, f"{PLUGIN_FAILED}: {error}", damaged=False) from error.__cause__


@attrs.define
class LiveRecords:
    """Live records of a segment, in order of their offsets. Columns, because a segment has up to about 200,000 records."""

    ids: Sequence[bytes]
    offsets: Sequence[int]
    sizes: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, begin: int, end: int) -> LiveRecords:
        """Return the records from position ``begin`` to ``end``."""
        return LiveRecords(self.ids[begin:end], self.offsets[begin:end], self.sizes[begin:end])

    def locations(self, number: int) -> list[int]:
        """Return the packed locations in segment ``number``."""
        return pack_locations(number, self.offsets, self.sizes)


@attrs.define
class PinnedSegment:
    """A segment while it is pinned."""

    segment: Segment
    count: int
    """Number of live records at the pin."""

    def live(self, context: GcContext, data: Buffer) -> LiveRecords:
        """Return the records of ``data``, the whole segment, that the index points to. Raises InconsistentSegment.

        Caller does not hold the state lock. Records that die before this returns are in ``died``.
        """
        segment = self.segment
        with blamed(segment, segment.form, "scan"):
            scan = scan_checked(segment.form.format, data)
        torn_write = scan.end.state == "torn" and not segment.quarantined  # never finished, and nothing stands behind it
        if scan.end.state != "clean" and not torn_write:
            reason = f" ({scan.end.reason})" if scan.end.reason else ""
            raise InconsistentSegment(segment, f"its end is {scan.end.state} at offset {scan.end.offset}{reason}")
        for damage in scan.damage:
            raise InconsistentSegment(segment, f"it is damaged at offset {damage.offset} ({damage.reason})")
        found = scan.records
        if len(scan.duplicates):  # after an interrupted compaction the index may point to a later copy
            found = Columns()
            for row in sorted((*scan.records.rows(), *scan.duplicates.rows()), key=itemgetter(1)):
                found.add(*row)
        ids = found.id_list()
        locations = pack_locations(segment.number, found.offsets, found.sizes)
        alive = list(map(eq, map(context.accounting.index.get, ids), locations))
        offsets, sizes = (list(compress(column, alive)) for column in (found.offsets, found.sizes))
        live = LiveRecords(list(compress(ids, alive)), offsets, sizes)
        if len(live) and live.offsets[0] < segment.header_bytes:
            raise InconsistentSegment(segment, f"a record begins at offset {live.offsets[0]}, inside of the header")
        with context.accounting.state_lock:
            died = self.died.copy()
        known = len(died.union(live.locations(segment.number))) if died else len(live)
        if known != self.count:
            reason = f"{self.count - known} of its {self.count} live records are not where the index says"
            if known > self.count:
                reason = f"its scan finds {known} live records where the index has {self.count}"
            raise InconsistentSegment(segment, reason)
        return live

    @property
    def died(self) -> set[int]:
        """Locations of the records that died since the pin. Guarded by the state lock."""
        assert self.segment.died_since_pin is not None
        return self.segment.died_since_pin


@contextlib.contextmanager
def pin(context: GcContext, numbers: Sequence[int]) -> Iterator[list[PinnedSegment]]:
    """Pin segments. Yields none if one of them is gone, or if all are empty. One that is empty at the end is queued for
    deletion."""
    accounting = context.accounting
    # Under the flush lock: records that were appended just before a segment was sealed may not be in the index yet.
    with accounting.flush_lock, accounting.state_lock, accounting.change:
        found = [segment for number in numbers if (segment := context.segments.by_number.get(number))]
        segments = found if len(found) == len(numbers) and any(segment.live_count for segment in found) else []
        for segment in segments:
            segment.died_since_pin = set()
            accounting.forget_revivable(segment)
        sources = [PinnedSegment(segment, segment.live_count) for segment in segments]
    try:
        yield sources
    finally:
        with accounting.state_lock:
            for segment in segments:
                segment.died_since_pin = None
            for segment in found:
                if not segment.live_count:
                    accounting.queue_deletion(segment)


@attrs.frozen
class Relocation:
    """Records of a pinned segment that were copied to other places, in ``target``."""

    source: PinnedSegment
    target: Segment
    ids: Sequence[bytes]
    old: Sequence[int]
    """Locations in the pinned segment."""
    new: Sequence[int]


def relocate(context: GcContext, moved: Relocation) -> None:
    """Point the entries of records to their new locations, and count them as live there. Leaves out those that have died since
    the pin. Takes the state lock.

    Raises InconsistentSegment if the index fails: some entries then point to the new locations, the others to the old ones.
    StoreError if even that fails.
    """
    for begin in range(0, len(moved.ids), RELOCATED_AT_ONCE):
        some = slice(begin, begin + RELOCATED_AT_ONCE)
        with context.accounting.state_lock, context.accounting.change:
            died = moved.source.died
            alive = [location not in died for location in moved.old[some]]
            ids = list(compress(moved.ids[some], alive))
            old, new = (list(compress(column[some], alive)) for column in (moved.old, moved.new))
            _switch(context, moved.source.segment, ids, old, new)
            for segment, sign, locations in ((moved.source.segment, -1, old), (moved.target, 1, new)):
                segment.live_count += sign * len(locations)
                segment.live_bytes += sign * sum(location & MASK for location in locations)
                context.accounting.mark_dirty(segment)


def _switch(context: GcContext, segment: Segment, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> None:
    """Relocate entries and look at each, or restore them all."""
    index = context.accounting.index
    references = list(map(index.references, ids))  # an index that fails may forget them
    try:
        count = index.relocate(ids, old, new)
        if type(count) is not int:
            raise TypeError(f"it gives {count!r}, not the number of entries")
        there = sum(map(eq, map(index.get, ids), new))
        if not count == there == len(ids):
            raise ValueError(f"{count} of {len(ids)} live records are said to have moved, {there} are where they were moved to")
    except BaseException as error:
        if comes_from_outside(error):
            raise  # and the store ends
        astray = [at for at, msg_id in enumerate(ids) if index.get(msg_id) != old[at]]
        index.enter([ids[at] for at in astray], [old[at] for at in astray], [references[at] for at in astray])
        lost = sum(index.get(ids[at]) != old[at] for at in astray)
        if lost:
            raise damaged_index(segment.path, f"{lost} live records are not where it said") from error
        if isinstance(error, MemoryError):
            raise
        reason = context.accounting.broken_index("relocate", error)
        raise InconsistentSegment(segment, f"{PLUGIN_FAILED}: {reason}", damaged=False) from error
