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
import threading
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import eq

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import BrokenPlugin, Buffer, Columns, Index, SegmentScan
from msgstore.contract.events import CollectionOutcome
from msgstore.engine.backends import Backends
from msgstore.engine.compact.compaction_plan import LiveRecords
from msgstore.engine.segment.segment import Segment, damaged_index
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.locations import MASK
from msgstore.scan import OpenFormat
from msgstore.scan.formats import failure_message
from msgstore.scan.sound import scan_checked

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


class GcContext:
    """One instance per open store."""

    def __init__(self, config: StoreConfig, backends: Backends, accounting: LiveAccounting) -> None:
        self.accounting = accounting
        self.segments = accounting.segments
        self.index = accounting.index
        self.state_lock = accounting.state_lock
        self.flush_lock = accounting.flush_lock
        self.gc_lock = threading.Lock()
        """Held by the one thread that collects, and by a thread that closes the store."""
        self.form = backends.write_format
        """Format of new copies."""
        self.size_limit = config.file_size_limit
        self.index_name = config.index.name

    def commit(self) -> None:
        """Commit all changes so far, records that the index points to included. Takes the flush lock. Raises StoreIOError."""
        with self.flush_lock:
            self.commit_locked()

    def commit_locked(self) -> None:
        """Same as ``commit``. Caller holds the flush lock."""
        self.segments.sync_written()
        self.accounting.commit()


class InconsistentSegment(Exception):
    """Raised for a segment that must not be rewritten or deleted. ``damaged``: quarantine it."""

    def __init__(self, segment: Segment, reason: str, *, damaged: bool = True) -> None:
        super().__init__(reason)
        self.segment = segment
        self.reason = reason
        self.damaged = damaged


@contextlib.contextmanager
def blamed(segment: Segment, form: OpenFormat, call: str) -> Iterator[None]:
    """Enclose a call of a format. Exceptions of the format become InconsistentSegment, with the name of its plugin."""
    try:
        with form.attribute_errors(call):
            yield
    except BrokenPlugin as error:
        raise InconsistentSegment(segment, str(error), damaged=False) from error.__cause__


@attrs.define
class PinnedSegment:
    """A segment while it is pinned."""

    segment: Segment
    count: int
    """Number of live records at the pin."""

    def live(self, context: GcContext, data: Buffer) -> LiveRecords:
        """Return the live records of ``data``, the whole segment, by offset. Raises InconsistentSegment.

        Caller does not hold the state lock. Records that die before this returns are in ``died``.
        """
        segment = self.segment
        with blamed(segment, segment.form, "scan"):
            scan = scan_checked(segment.form.format, data)
        reason = _damage(segment, scan)
        if reason:
            raise InconsistentSegment(segment, reason)
        live = live_records(context.index, segment.number, scan)
        if len(live) and live.offsets[0] < segment.header_bytes:
            raise InconsistentSegment(segment, f"a record begins at offset {live.offsets[0]}, inside of the header")
        with context.state_lock:
            died = self.died.copy()
        known = len(died.union(live.locations(segment.number))) if died else len(live)
        if known != self.count:
            lost = self.count - known
            raise InconsistentSegment(segment, f"{lost} of its {self.count} live records are not where the index says")
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
    # In turn: records that were appended just before a segment was sealed may not be in the index yet.
    with context.flush_lock, context.state_lock:
        found = [segment for number in numbers if (segment := context.segments.by_number.get(number))]
        segments = found if len(found) == len(numbers) and any(segment.live_count for segment in found) else []
        for segment in segments:
            segment.died_since_pin = set()
            context.accounting.forget_revivable(segment)
        sources = [PinnedSegment(segment, segment.live_count) for segment in segments]
    try:
        yield sources
    finally:
        with context.state_lock:
            for segment in segments:
                segment.died_since_pin = None
            for segment in found:
                if not segment.live_count:
                    context.accounting.queue_deletion(segment)


def live_records(index: Index, number: int, scan: SegmentScan) -> LiveRecords:
    """Return the records of a scan that the index points to. This may be a later copy."""
    first = _alive(index, number, scan.records)
    if not len(scan.duplicates):
        return first
    later = _alive(index, number, scan.duplicates)
    rows = sorted(zip((*first.offsets, *later.offsets), (*first.sizes, *later.sizes), (*first.ids, *later.ids), strict=True))
    return LiveRecords([msg_id for _, _, msg_id in rows], [offset for offset, _, _ in rows], [size for _, size, _ in rows])


def _alive(index: Index, number: int, columns: Columns) -> LiveRecords:
    ids = columns.id_list()
    everything = LiveRecords(ids, columns.offsets, columns.sizes)
    alive = list(map(eq, map(index.get, ids), everything.locations(number)))
    offsets, sizes = (list(compress(column, alive)) for column in (columns.offsets, columns.sizes))
    return LiveRecords(list(compress(ids, alive)), offsets, sizes)


def _damage(segment: Segment, scan: SegmentScan) -> str | None:
    """Return why a segment must not be rewritten or deleted after this scan; None if it may be."""
    torn_write = scan.end.state == "torn" and not segment.quarantined  # never finished, and nothing stands behind it
    if scan.end.state != "clean" and not torn_write:
        return f"its end is {scan.end.state} at offset {scan.end.offset}" + (f" ({scan.end.reason})" if scan.end.reason else "")
    if scan.damage:
        return f"it is damaged at offset {scan.damage[0].offset} ({scan.damage[0].reason})"
    return None


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
        with context.state_lock:
            _relocate(context, moved, slice(begin, begin + RELOCATED_AT_ONCE))


def _relocate(context: GcContext, moved: Relocation, some: slice) -> None:
    source, ids, old, new = moved.source, moved.ids[some], moved.old[some], moved.new[some]
    if died := source.died:
        alive = [location not in died for location in old]
        ids, old, new = list(compress(ids, alive)), list(compress(old, alive)), list(compress(new, alive))
    index = context.index
    references = list(map(index.references, ids))  # an index that fails may forget them
    try:
        count = index.relocate(ids, old, new)
        if type(count) is not int:
            raise TypeError(f"it gives {count!r}, not the number of entries")
        if count != len(ids):
            raise ValueError(f"{count} of {len(ids)} live records are said to have moved")
        there = sum(map(eq, map(index.get, ids), new))
        if there != len(ids):
            raise ValueError(f"{len(ids) - there} of {len(ids)} live records are not where they were moved to")
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        _restore(index, source.segment, ids, old, references)
        catalogue = context.segments.formats.catalogue
        provider = catalogue.provider(catalogue.index(context.index_name))
        reason = failure_message("index", context.index_name, provider, "relocate", error)
        raise InconsistentSegment(source.segment, reason, damaged=False) from error
    for segment, sign, locations in ((source.segment, -1, old), (moved.target, 1, new)):
        segment.live_count += sign * len(locations)
        segment.live_bytes += sign * sum(location & MASK for location in locations)
        context.accounting.mark_dirty(segment)


def _restore(index: Index, segment: Segment, ids: Sequence[bytes], old: Sequence[int], references: Sequence[int]) -> None:
    """Enter the ids again that the index does not have at ``old``, with the number of references that they had."""
    astray = [at for at, msg_id in enumerate(ids) if index.get(msg_id) != old[at]]
    index.enter([ids[at] for at in astray], [old[at] for at in astray], [references[at] for at in astray])
    lost = sum(index.get(ids[at]) != old[at] for at in astray)
    if lost:
        raise damaged_index(segment.path, f"{lost} live records are not where it said")
