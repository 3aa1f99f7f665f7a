"""The ledger: what is live in each segment, what is dead but can still be revived, and the commits that put this on disk.

Two locks order everything that happens to a store. Whoever appends to segments, seals or deletes them, or commits, holds
``flushing``, perhaps while the disk works. ``lock`` guards what is in memory and is never held over a write. ``flushing`` is
taken first; it is re-entrant, because a client that is told of its messages may flush.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgstore.contract import Index
from msgstore.contract.locations import MASK, NUMBER_SHIFT
from msgstore.engine.segment.segments import Segment, Segments, io_errors
from msgstore.engine.state.checkpoint import CLEAN_KEY, LAYOUT, LAYOUT_KEY, pack_row, row_key
from msgstore.engine.state.flag import Flag
from msgstore.engine.state.locks import is_owned
from msgstore.engine.state.shared_bodies import SharedBodies

if TYPE_CHECKING:
    from msgstore.engine.compact.background_collector import BackgroundCollector
    from msgstore.engine.open.clean_stop import CleanMarker

_LOOK = 2**22
"""Bytes of records that have died since the collector was asked to look."""
Part = tuple[Segment, int, int]
"""(segment, records, bytes) that were appended."""


class LiveAccounting:
    """Of one open store. Methods are called under ``lock``, unless they say otherwise."""

    def __init__(self, segments: Segments, index: Index, shared: SharedBodies, *, persistent: bool) -> None:
        self.segments = segments
        self.index = index
        self.shared = shared
        self.persistent = persistent
        self.lock = threading.Lock()
        self.flushing = threading.RLock()
        self.lingering: dict[bytes, int] = {}
        """Dead records that a late second write can revive: id to location. Of the current segment, and of segments that are
        not self-describing."""
        self.collector: BackgroundCollector | None = None
        """Who collects in the background; None if nobody does."""
        self.worth_a_look = Flag()
        """Set when there may be something to collect."""
        self._freed = 0
        self.marker: CleanMarker | None = None
        """What says that the last stop was a clean one, as long as nothing was changed since; see ``begin_change``."""
        self.hidden: CleanMarker | None = None
        """The same from then on until the first commit."""
        self.recounted = False
        """Whether references came or went since the last commit without a record that came or died."""
        self._committed = False
        self._due = False
        """Whether something was frozen, and no commit has succeeded since."""
        self._touched: set[Segment] = set()
        self._deleted: list[Segment] = []
        self._empty: set[Segment] = set()

    @property
    def mine(self) -> bool:
        """Whether the calling thread has ``flushing``: then it must not wait for anybody who needs it."""
        return is_owned(self.flushing)

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit. Without the lock a hint."""
        if self.recounted or self._touched:
            return True
        return self.marker is None and (self._due or bool(self._deleted or self._empty))

    @property
    def has_empty(self) -> bool:
        """Whether there are segments to delete."""
        return bool(self._empty)

    def touch(self, segment: Segment) -> None:
        """The segment's row goes with the next commit."""
        self._touched.add(segment)

    def note_empty(self, segment: Segment) -> None:
        """Delete the segment at the next flush if it has no live record by then."""
        self._empty.add(segment)

    def account(self, parts: Iterable[Part]) -> None:
        """What was appended is live, now that the index says so."""
        for segment, count, size in parts:
            segment.live_count += count
            segment.live_bytes += size
            self._touched.add(segment)
            self._empty.discard(segment)

    def appended(self, parts: Sequence[Part]) -> None:
        """New records, which the index has now."""
        self.account(parts)
        if parts:
            self.segments.telemetry.wrote(parts)

    def bury(self, freed: Sequence[tuple[bytes, int]]) -> None:
        """(id, location) of records that lost their last reference. Called for others that lost one, too."""
        self.recounted = True
        if self.shared.ids:
            self.shared.forget(freed)
        by_number, current = self.segments.by_number, self.segments.current
        freed_before = self._freed
        for msg_id, location in freed:
            segment = by_number.get(location >> NUMBER_SHIFT) or self.segments.get(location >> NUMBER_SHIFT)
            segment.live_count -= 1
            segment.live_bytes -= location & MASK
            self._freed += location & MASK
            self._touched.add(segment)
            if segment.died is not None:
                segment.died.add(location)
            elif segment is current or not segment.form.self_describing:
                self.lingering[msg_id] = location
            if segment.live_count == 0 and segment is not current:
                self._empty.add(segment)

        if self._freed // _LOOK > freed_before // _LOOK:
            self.worth_a_look.set()

    def totals(self) -> tuple[int, int]:
        """(bytes of all segments, bytes of what is alive)."""
        segments = list(self.segments.by_number.values())  # at once: whoever has ``flushing`` may be adding one
        return sum([s.size for s in segments]), sum([s.live_bytes for s in segments])

    def revive(self, msg_id: bytes) -> bool:
        """One reference to a record that died lately; False if it cannot be had any more."""
        location = self.lingering.pop(msg_id, None)
        if location is None:
            return False
        self.index.enter([msg_id], [location])
        self.account([(self.segments.by_number[location >> NUMBER_SHIFT], 1, location & MASK)])
        self.segments.telemetry.counters.revived_messages += 1
        return True

    def forget_lingering(self, segment: Segment) -> None:
        if self.lingering:
            number = segment.number
            self.lingering = {i: at for i, at in self.lingering.items() if at >> NUMBER_SHIFT != number}

    def sealed(self, segment: Segment) -> None:
        """It takes no more records; if it is self-describing, its dead ones can no longer be revived."""
        self._touched.add(segment)
        self.worth_a_look.set()
        if segment.live_count == 0:
            self._empty.add(segment)
        if segment.form.self_describing:
            self.forget_lingering(segment)

    def state(self, clean: bytes) -> dict[bytes, bytes]:
        """The whole state of a clean stop."""
        rows = {row_key(segment): pack_row(segment) for segment in self.segments}
        return {LAYOUT_KEY: LAYOUT, CLEAN_KEY: clean, **rows}

    # -- with ``flushing``, without ``lock`` ------------------------------------------------------------------------------

    def begin_change(self) -> None:
        """Called before anything changes on disk: from the first change on the stop counts as dirty. Raises StoreIOError."""
        if self.marker is not None:
            self.segments.check_directory()
            self.marker.hide(self)
            self.hidden, self.marker = self.marker, None

    def commit(self, extra: Mapping[bytes, bytes | None] | None = None) -> None:
        """Commit the index with the rows of every segment that has changed. If it raises (StoreIOError), the next commit has
        all of it as well. Does nothing if nothing was changed since the store was opened."""
        if self.marker is not None:
            if not self.changed:
                return
            self.begin_change()
        if not self.persistent and self._committed:  # its first commit removed its snapshot; more it does not do
            with self.lock:
                self._touched.clear()
                self._deleted.clear()
                self.recounted = False
            return
        with self.lock:
            state: dict[bytes, bytes | None] = {}
            if self.persistent:
                state |= {row_key(segment): None for segment in self._deleted}
                state |= {row_key(segment): pack_row(segment) for segment in self._touched}
            if self.hidden is not None:
                state |= self.hidden.state
            if extra:
                state |= extra
            self.index.freeze(state)
            self._touched.clear()
            self._deleted.clear()
            self.recounted = False
            self._due = True
        with io_errors(self.segments.directory):
            self.index.commit()
        self._committed, self._due = True, False
        if self.hidden is not None:
            hidden, self.hidden = self.hidden, None
            hidden.finish(self)

    def delete_empty(self) -> None:
        """Unlink segments without live records, after the commit that says so: one unlink each, nothing is read."""
        if self.marker is not None or not (self._empty or self._deleted):
            return
        self.segments.check_directory()  # or a segment of another store would be deleted
        found, gone = deque(self._take_empty()), list[Segment]()
        try:
            while found:
                self.segments.delete(found[0], self.lock)
                with self.lock:
                    segment = found.popleft()
                    self._touched.discard(segment)
                    self._deleted.append(segment)
                gone.append(segment)
        finally:
            with self.lock:
                self._empty.update(found)
            for segment in gone:
                self.segments.telemetry.deleted(segment.path.name, segment.size)
        if self._deleted:
            if self.segments.pending_erase:
                self.worth_a_look.set()
            if self.segments.durable:  # before the index forgets them, or a power loss brings back strangers
                self.segments.sync_directory()
            self.commit()

    def _take_empty(self) -> Sequence[Segment]:
        """Those of which the index says on disk that they are empty; what has changed since the commit waits for the next."""
        with self.lock:
            later = self._empty & self._touched if self.persistent else set()
            found = [
                segment
                for segment in sorted(self._empty - later, key=lambda segment: segment.number)
                if segment.live_count == 0
                and not (segment is self.segments.current or segment.quarantined or segment.collecting)
            ]
            for segment in found:
                self.forget_lingering(segment)
            self._empty = later
            return found
