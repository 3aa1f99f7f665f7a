"""Batch writer: moves a batch from the write buffer to the end of the current segment, and from there into the index.

Callers hold the flush lock. The state lock is taken to look into the buffer and to enter what was appended; writers, removers
and readers go on in between, and their changes are seen when the batch is entered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice, pairwise
from operator import add

import attrs

from msgstore.config import StoreConfig
from msgstore.engine.backends import Backends
from msgstore.engine.segment.segment import Segment, io_errors
from msgstore.engine.state.accounting import AppendedRun, LiveAccounting
from msgstore.engine.write.write_buffer import OVERHEAD, BufferedMessage, Popped, WriteBuffer, count_references
from msgstore.locations import NUMBER_SHIFT, OFFSET_SHIFT

_STEP = 1 << OFFSET_SHIFT


@attrs.define
class AppendResult:
    """Locations of appended, unindexed records."""

    locations: list[int] = attrs.field(factory=list)
    runs: list[AppendedRun] = attrs.field(factory=list)


@attrs.frozen
class BatchResult:
    """Result of one batch."""

    looked_at: int
    """Number of ids that were processed, from the first on."""
    rewrite: Sequence[bytes] = ()
    """Ids that had a record at the lookup, which has died since: another batch has to write them."""


class BatchWriter:
    """One instance per open store."""

    def __init__(self, config: StoreConfig, backends: Backends, buffer: WriteBuffer, accounting: LiveAccounting) -> None:
        self._segment_limit = config.file_size_limit
        self._large_message = config.large_message
        self._form = backends.write_format
        self._buffer = buffer
        self._accounting = accounting
        self._index = accounting.index
        self._segments = accounting.segments
        self._directory = accounting.segments.directory
        self.seen_large = False
        """Set before the first large body is buffered: from then on batches are searched for large bodies."""
        self.on_roll: Callable[[], object] = lambda: None
        """Set by the store: a new segment was started."""

    def write(self, ids: Sequence[bytes], max_bytes: int) -> BatchResult:
        """Write the first of ``ids``, about ``max_bytes`` of them. Raises StoreIOError: what was not entered stays buffered."""
        with self._accounting.state_lock:
            entries = self._buffer.peek(ids)
        looked_at, ids, bodies, charged = _cut(ids, entries, max_bytes)
        if not ids:
            return BatchResult(looked_at)
        known = self._known(ids)
        new_ids, new_bodies = ids, bodies
        if known is not None:
            new_ids = [msg_id for msg_id, there in zip(ids, known, strict=True) if not there]
            new_bodies = [body for body, there in zip(bodies, known, strict=True) if not there]
        appended = self.append(new_ids, new_bodies) if new_ids else AppendResult()
        with self._accounting.state_lock, io_errors(self._directory):
            rewrite = self._enter(ids, known, appended)
            self._buffer.estimated_bytes -= charged
            self._buffer.mean_charge = charged / len(ids)
        return BatchResult(looked_at, rewrite)

    def _known(self, ids: Sequence[bytes]) -> list[bool] | None:
        """Return which ids have a record already, live or revivable; None if none has."""
        with io_errors(self._directory):
            located = list(map(self._index.get, ids))
        revivable = self._accounting.revivable
        if located.count(None) == len(ids) and (not revivable or revivable.keys().isdisjoint(ids)):
            return None
        return [location is not None or msg_id in revivable for msg_id, location in zip(ids, located, strict=True)]

    def _enter(self, ids: Sequence[bytes], known: list[bool] | None, appended: AppendResult) -> list[bytes]:
        """Move entries from the buffer into the index. Return the ids whose older record died since the lookup.

        If the index fails, what it did not get stays buffered. Caller holds the state lock.
        """
        is_plain = known is None and not self._buffer.shared
        entries = self._buffer.pop(ids)
        rewrite: list[bytes] = []
        dead: list[tuple[bytes, int]] = []
        if is_plain and all(entries):
            try:
                self._index.enter(ids, appended.locations)
            except BaseException:
                self._reinsert(zip(ids, entries, strict=True))
                raise
        else:
            waiting = {msg_id: entry for msg_id, entry in zip(ids, entries, strict=True) if entry is not None}
            try:
                rewrite, dead = self._enter_mixed(ids, known, appended, entries, waiting)
            finally:
                self._reinsert(waiting.items())
        self._accounting.add_live(appended.runs)
        if appended.runs:
            self._segments.telemetry.wrote(appended.runs)
        if dead:
            self._accounting.mark_dead(dead)
        return rewrite

    def _reinsert(self, popped: Iterable[Popped]) -> None:
        for msg_id, entry in popped:
            if entry is not None:
                self._buffer.reinsert(msg_id, entry)

    def _enter_mixed(
        self,
        ids: Sequence[bytes],
        known: list[bool] | None,
        appended: AppendResult,
        entries: Sequence[BufferedMessage | None],
        waiting: dict[bytes, BufferedMessage],
    ) -> tuple[list[bytes], list[tuple[bytes, int]]]:
        """Enter messages of which some are known, shared, or were removed meanwhile. Return (rewrite ids, dead records)."""
        rewrite: list[bytes] = []
        dead: list[tuple[bytes, int]] = []
        entered: list[tuple[bytes, int, int]] = []
        locations = iter(appended.locations)
        for at, (msg_id, entry) in enumerate(zip(ids, entries, strict=True)):
            if known is None or not known[at]:
                location = next(locations)
                if entry is None:
                    dead.append((msg_id, location))  # removed while it was being written
                else:
                    entered.append((msg_id, location, count_references(entry)))
            elif entry is not None and not self._add_references(msg_id, entry):
                rewrite.append(msg_id)
            else:
                waiting.pop(msg_id, None)
        if entered:
            self._index.enter(*zip(*entered, strict=True))
            self._accounting.shared.ids.update(msg_id for msg_id, _, count in entered if count > 1)
        for msg_id, _, _ in entered:
            waiting.pop(msg_id, None)
        return rewrite, dead

    def _add_references(self, msg_id: bytes, entry: BufferedMessage) -> bool:
        """Add the references of a buffered message to its record. Return False if the record cannot be revived."""
        self._accounting.mark_recounted()
        more = count_references(entry)
        if self._index.get(msg_id) is None:
            if not self._accounting.revive(msg_id):
                return False
            more -= 1
        for _ in range(more):
            self._index.add_reference(msg_id)
        if more:
            self._accounting.shared.ids.add(msg_id)
        return True

    # -- records ----------------------------------------------------------------------------------------------------------

    def append(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> AppendResult:
        """Append records. A large body gets a segment of its own, so that its removal frees the space at once. The state lock
        is not held: no other thread knows these records before the index has them.

        Raises StoreIOError: what earlier steps of this call have appended stays in the segment, as garbage.
        """
        self._accounting.begin_change()
        result = AppendResult()
        large = [at for at, body in enumerate(bodies) if len(body) >= self._large_message] if self.seen_large else []
        cuts = sorted({0, len(bodies), *large, *(at + 1 for at in large)})
        for begin, end in pairwise(cuts):
            is_alone = begin in large
            current = self._segments.current
            if is_alone and (current is None or current.size > current.header_bytes):
                self.roll()
            part_ids = ids[begin:end] if end - begin < len(ids) else ids
            data, sizes = self._form.format.encode(part_ids, bodies[begin:end] if end - begin < len(bodies) else bodies)
            ends = list(accumulate(sizes))
            view, done, base = memoryview(data), 0, 0
            while done < len(ends):
                segment = self._segments.current
                if segment is None or segment.size >= self._segment_limit:
                    segment = self.roll()
                room = self._segment_limit - segment.size
                cut = min(bisect_left(ends, base + room, done) + 1, len(ends))  # with the record that reaches the limit
                count, size, offset = cut - done, ends[cut - 1] - base, segment.size
                self._accounting.mark_dirty(segment)
                self._segments.append(view[base : base + size])
                part = sizes[done:cut] if count < len(sizes) else sizes
                self._segments.hints.add(segment, offset, size, part_ids[done:cut] if count < len(sizes) else part_ids, part)
                # locations as of ``pack_location``: each record begins where the one before it ends
                first = segment.number << NUMBER_SHIFT | offset << OFFSET_SHIFT
                result.locations.extend(map(add, accumulate(map(_STEP.__mul__, part), initial=first), part))
                result.runs.append((segment, count, size))
                done, base = cut, base + size
            if is_alone:
                self.seal(appendable=False)
        return result

    def roll(self) -> Segment:
        """Seal the current segment and start a new one. Raises StoreIOError: then there is no current segment."""
        self.seal()
        try:
            segment = self._segments.roll(self._form)
        except BaseException:
            for segment in self._segments.unwritable:  # the file may exist: without a row the index would be rebuilt
                with self._accounting.state_lock:
                    self._accounting.mark_dirty(segment)
            raise
        self._accounting.mark_dirty(segment)
        self.on_roll()
        return segment

    def seal(self, *, appendable: bool = True) -> None:
        """Seal the current segment; there is none until the next ``roll``. Raises StoreIOError."""
        segment = self._segments.current
        if segment is None:
            self._segments.measure_unwritable()
            return
        self._segments.check_current()  # the last chance to notice that its file was replaced
        self._accounting.begin_change()
        segment.appendable &= appendable
        try:
            self._segments.seal_current()
        finally:
            with self._accounting.state_lock:
                self._accounting.on_sealed(segment)


def _cut(
    ids: Sequence[bytes], entries: Sequence[BufferedMessage | None], max_bytes: int
) -> tuple[int, Sequence[bytes], Sequence[bytes], int]:
    """Return the number of ids that were looked at; those still buffered, about ``max_bytes``; their bodies; their charge."""
    looked_at = len(ids)
    if not all(entries):
        ids = [msg_id for msg_id, entry in zip(ids, entries, strict=True) if entry]
    bodies = [entry[0] for entry in entries if entry]
    charged = sum(map(len, bodies)) + OVERHEAD * len(bodies)
    if charged > max_bytes + max_bytes // 4 and len(bodies) > 1:
        so_far = list(accumulate(map(OVERHEAD.__add__, map(len, bodies))))
        count = min(bisect_left(so_far, max_bytes) + 1, len(bodies))
        if count < len(bodies):
            looked_at = count if len(ids) == looked_at else _position(entries, count)
            ids, bodies, charged = ids[:count], bodies[:count], so_far[count - 1]
    return looked_at, ids, bodies, charged


def _position(entries: Sequence[BufferedMessage | None], count: int) -> int:
    """Return the position after the ``count``-th entry that is not None."""
    return next(islice((at for at, entry in enumerate(entries, 1) if entry), count - 1, None))
