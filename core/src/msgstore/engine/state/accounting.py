"""Live accounting: live records and bytes of each segment, dead records that can be revived, and commits of the index.

Three locks order everything that happens to a store, taken in this order. The *GC lock* is held by the thread that collects or
closes (``GarbageCollector``). The *flush lock* lets one thread append, seal, delete and commit, also during I/O. The *state
lock* guards memory. No flush and no collection writes files under it; slow reads read under it, and ``close`` saves the index
under it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from msgstore.config import StoreConfig
from msgstore.contract import BrokenPlugin, Capability, Index, ReleaseResult
from msgstore.contract.events import SegmentDeletedEvent
from msgstore.engine.segment.segment import Segment, io_errors
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.checkpoint import CLEAN_KEY, LAYOUT, LAYOUT_KEY, pack_row, row_key
from msgstore.engine.state.clean_shutdown import PENDING_CLEAN, ShutdownFiles, format_clean, last_v1_file
from msgstore.locations import MASK, NUMBER_SHIFT


class SharedBodies:
    """Bounded cache of bodies with several references: their many readers share one object.

    Callers of the methods hold the state lock; ``ids`` may be read without it.
    """

    def __init__(self, limit: int) -> None:
        """``limit``: bytes of all bodies. The least recently read ones are dropped first."""
        self.ids: set[bytes] = set()
        """Live messages that had several references at some time."""
        self._limit = limit
        self._bodies: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, msg_id: bytes) -> bytes | None:
        """Return a body, or None."""
        body = self._bodies.get(msg_id)
        if body is not None:
            self._bodies.move_to_end(msg_id)
        return body

    def put(self, msg_id: bytes, body: bytes) -> None:
        """Add a body, unless it is larger than the limit."""
        if len(body) <= self._limit and msg_id not in self._bodies:
            self._bodies[msg_id] = body
            self._bytes += len(body)
            while self._bytes > self._limit:
                self._bytes -= len(self._bodies.popitem(last=False)[1])

    def forget(self, dead: Iterable[tuple[bytes, int]]) -> None:
        """Drop the bodies of (id, location) that have lost their last reference."""
        for msg_id, _ in dead:
            if msg_id in self.ids:
                self.ids.discard(msg_id)
                self._bytes -= len(self._bodies.pop(msg_id, b""))


_REQUEST_GC_BYTES = 2**22
"""Bytes of records that die between two requests for a collection."""
AppendedRun = tuple[Segment, int, int]
"""(segment, records, bytes) that were appended."""


class LiveAccounting:
    """One instance per open store. Callers of methods that change memory hold the state lock; of the others the flush lock,
    unless a method says otherwise."""

    def __init__(self, config: StoreConfig, segments: Segments, index: Index) -> None:
        self.segments = segments
        self.index = index
        self._descriptor = segments.formats.catalogue.index(config.index.name)
        self.shared = SharedBodies(config.shared_cache)
        self.is_persistent = Capability.PERSISTENT in self._descriptor.capabilities
        """True if the index survives a crash."""
        self.state_lock = threading.Lock()
        self.flush_lock = threading.Lock()
        self.change: AbstractContextManager[None] = nullcontext()
        """Set by the store to ``Lifecycle.change``."""
        self.revivable: dict[bytes, int] = {}
        """Dead records that a second write can revive, id to location: those of the current segment, and of segments that are
        not self-describing."""
        self.request_gc: Callable[..., object] = lambda **_: None
        """Set by the store: there may be something to collect."""
        self.marker: ShutdownFiles | None = None
        """Mark of the last clean shutdown, while nothing was changed since."""
        self._retired: ShutdownFiles | None = None
        """The same mark between the first change and the first commit."""
        self.is_recounted = False
        """True if references changed since the last commit, also where no row did."""
        self.is_revived = False
        """True if a record was revived since the last commit of a persistent index. It is not in the tail that a recovery
        scans: if that commit has it as dead, a crash would lose the message."""
        self._committed = False
        self._has_frozen = False
        """True if changes were set aside and no commit has succeeded since."""
        self._dirty: set[Segment] = set()
        self._deleted: list[Segment] = []
        self._empty: set[Segment] = set()
        self._freed_bytes = 0
        self.appended_bytes = 0
        """Charged bytes of the messages that were appended since the last commit. Guarded by the state lock."""

    @property
    def is_changed(self) -> bool:
        """True if there is something to commit. A hint without the state lock."""
        if self.is_recounted or self._dirty:
            return True
        return self.marker is None and (self._has_frozen or bool(self._deleted or self._empty))

    @property
    def has_empty(self) -> bool:
        """True if there are segments to delete."""
        return bool(self._empty)

    def mark_dirty(self, segment: Segment) -> None:
        """Write the row of the segment with the next commit. Caller holds the flush lock or the state lock."""
        self._dirty.add(segment)

    def queue_deletion(self, segment: Segment) -> None:
        """Delete the segment at the next flush if it has no live record then."""
        self._empty.add(segment)

    def add_live(self, runs: Iterable[AppendedRun]) -> None:
        """Count appended records as live. Comes before the index gets them: what it has is never counted as dead."""
        for segment, count, size in runs:
            segment.live_count += count
            segment.live_bytes += size
            self._dirty.add(segment)
            self._empty.discard(segment)

    def enter(self, ids: Sequence[bytes], locations: Sequence[int], references: Sequence[int] | None = None) -> None:
        """Enter records that are counted as live already.

        If the index raises, entries that it made before are released, and the records count as dead. A record whose entry
        cannot be released stays counted: a segment that the index points to must not be deleted.
        """
        try:
            self.index.enter(ids, locations, references)
            if (there := self.index.get(ids[0])) != locations[0]:
                raise self.broken_index("enter", f"get gives {f'{there!r}':.60} for an id that was entered with {locations[0]}")
        except BaseException:
            located = list(zip(ids, locations, strict=True))
            entered = [msg_id for msg_id, location in located if self.index.get(msg_id) == location]
            if entered:
                with suppress(Exception):  # the first error is raised
                    self.index.release([msg_id for msg_id in entered for _ in range(self.index.references(msg_id))])
            self.mark_dead([(msg_id, location) for msg_id, location in located if self.index.get(msg_id) != location])
            raise

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        """Remove one reference for each id. Caller counts what is freed as dead. Raises OSError: then nothing was removed;
        BrokenPlugin."""
        released = self.index.release(ids)
        if not isinstance(released, ReleaseResult):
            raise self.broken_index("release", f"it gives {type(released).__name__}, not ReleaseResult")
        return released

    def locate(self, msg_id: bytes) -> int | None:
        """Return the location of a message on disk, or None. Raises BrokenPlugin."""
        location = self.index.get(msg_id)
        self.check_location(location)
        return location

    def check_location(self, location: object) -> None:
        """Raise BrokenPlugin for what is neither a location nor None. Called where another exception would follow."""
        if not isinstance(location, int | None):
            raise self.broken_index("get", f"it gives {f'{location!r}':.60}, not a location")

    def broken_index(self, method: str, error: BaseException | str) -> BrokenPlugin:
        """Return the error of a method of the index that has failed, or given a wrong result."""
        error = TypeError(error) if isinstance(error, str) else error
        return self.segments.formats.catalogue.broken(self._descriptor, f"failed in {method}", error)

    def mark_dead(self, freed: Sequence[tuple[bytes, int]]) -> None:
        """Count (id, location) records that lost their last reference as dead. Also called if only references were removed."""
        self.is_recounted = True
        if self.shared.ids:
            self.shared.forget(freed)
        by_number, current = self.segments.by_number, self.segments.current
        freed_bytes = before = self._freed_bytes
        for msg_id, location in freed:
            segment = by_number.get(location >> NUMBER_SHIFT) or self.segments.get(location >> NUMBER_SHIFT)
            segment.live_count -= 1
            size = location & MASK
            segment.live_bytes -= size
            freed_bytes += size
            self._dirty.add(segment)
            if segment.died_since_pin is not None:
                segment.died_since_pin.add(location)
            elif segment is current or not segment.form.self_describing:
                self.revivable[msg_id] = location
            if segment.live_count == 0 and segment is not current:
                self._empty.add(segment)
        self._freed_bytes = freed_bytes
        if freed_bytes // _REQUEST_GC_BYTES > before // _REQUEST_GC_BYTES:
            self.request_gc()

    def revive(self, msg_id: bytes) -> bool:
        """Give a dead record one reference. Return False if there is none that can be revived."""
        location = self.revivable.pop(msg_id, None)
        if location is None:
            return False
        self.add_live([(self.segments.by_number[location >> NUMBER_SHIFT], 1, location & MASK)])
        self.enter([msg_id], [location])
        self.is_revived = self.is_persistent
        self.segments.telemetry.counters.revived_messages += 1
        return True

    def forget_revivable(self, segment: Segment) -> None:
        """Revive no record of this segment any more."""
        if self.revivable:
            number = segment.number
            self.revivable = {i: at for i, at in self.revivable.items() if at >> NUMBER_SHIFT != number}

    def on_sealed(self, segment: Segment) -> None:
        """Note that the segment takes no more records."""
        self._dirty.add(segment)
        self.request_gc(has_grown=True)
        if segment.live_count == 0:
            self._empty.add(segment)
        if segment.form.self_describing:
            self.forget_revivable(segment)

    def total_bytes(self) -> tuple[int, int]:
        """Return (bytes of all segments, bytes of live records). Needs no lock."""
        segments = list(self.segments.by_number.values())  # one step: the holder of the flush lock may add one
        return sum([s.size for s in segments]), sum([s.live_bytes for s in segments])

    # -- callers hold the flush lock, not the state lock ------------------------------------------------------------------

    def begin_change(self) -> None:
        """Prepare the first change on disk: after a crash from here on, the next opening looks for records that were appended.
        Raises StoreIOError."""
        if self.marker is not None:
            self.segments.check_directory()
            self.marker.retire(self.segments)
            with self.state_lock:
                self._dirty.update(self.segments)
            self._retired, self.marker = self.marker, None

    def commit(self, extra: Mapping[bytes, bytes | None] | None = None) -> None:
        """Commit the index with the rows of all changed segments. Does nothing if nothing changed since the opening.

        Raises StoreIOError: the next commit then has all of it as well.
        """
        if self.marker is not None:
            if not self.is_changed:
                return
            self.begin_change()
        is_needed = self.is_persistent or not self._committed  # without persistence: the first one removes the snapshot
        with self.state_lock, self.change:
            if is_needed:
                state: dict[bytes, bytes | None] = {}
                if self.is_persistent:
                    state |= {row_key(segment): None for segment in self._deleted}
                    state |= {row_key(segment): pack_row(segment) for segment in self._dirty}
                self.index.freeze({**state, **(self._retired.state if self._retired else {}), **(extra or {})})
                self._has_frozen = True
            self._dirty.clear()
            self._deleted.clear()
            self.is_recounted, self.appended_bytes = False, 0
        if not is_needed:
            return
        with io_errors(self.segments.directory):
            self.index.commit()
        self._committed, self._has_frozen, self.is_revived = True, False, False
        if self._retired is not None:
            retired, self._retired = self._retired, None
            retired.finish(self.segments)

    def delete_empty(self) -> None:
        """Delete segments without live records, after the commit that says so. Reads nothing. Raises StoreIOError."""
        if self.marker is not None or not (self._empty or self._deleted):
            return
        self.segments.check_directory()  # or a segment of another store would be deleted
        waiting, deleted = deque(self._take_empty()), list[Segment]()
        try:
            while waiting:
                self.segments.delete(waiting[0], self.state_lock)
                with self.state_lock:
                    segment = waiting.popleft()
                    self._dirty.discard(segment)
                    self._deleted.append(segment)
                deleted.append(segment)
        finally:
            with self.state_lock:
                self._empty.update(waiting)
            for segment in deleted:
                self.segments.telemetry.note(SegmentDeletedEvent, file=segment.path.name, size=segment.size)
        if self._deleted:
            if self.segments.pending_erase:
                self.request_gc()
            if self.segments.is_durable:  # before the index forgets them, or a power loss brings unknown segments back
                self.segments.sync_directory()
            self.commit()

    def save_clean(self, client_refs: set[bytes]) -> bool:
        """Save the index and the text of ``clean.dot``. Return False if nothing has changed.

        The shutdown is clean once the index has its state on disk. Raises StoreIOError.
        """
        segments = self.segments
        segments.seal_current()
        numbers = ((segment.number, segment.path.suffix) for segment in segments)
        clean = format_clean(client_refs, last_v1_file(numbers))
        if self.marker is not None and self.marker.saved == clean:
            return False
        if self.marker is None:
            segments.hints.save(everything=True)
        with io_errors(segments.directory):
            segments.files.write_file(segments.directory / PENDING_CLEAN, [clean], sync=segments.is_durable)
            with self.state_lock:
                rows = {row_key(segment): pack_row(segment) for segment in segments}
                self.index.close({LAYOUT_KEY: LAYOUT, CLEAN_KEY: clean, **rows})
        return True

    def _take_empty(self) -> Sequence[Segment]:
        """Return the segments that the committed index has nothing in. Those changed since then wait for the next commit."""
        with self.state_lock, self.change:
            later = self._empty & self._dirty if self.is_persistent else set()
            found = [
                segment
                for segment in sorted(self._empty - later, key=lambda segment: segment.number)
                if segment.live_count == 0
                and not (segment is self.segments.current or segment.quarantined or segment.died_since_pin is not None)
            ]
            for segment in found:
                self.forget_revivable(segment)
            self._empty = later
            return found
