"""Batch writer: moves a batch from the write buffer to the end of the current segment, and from there into the index.

Callers hold the flush lock. The state lock is taken to look into the buffer and to enter what was appended; writers, removers
and readers go on in between, and their changes are seen when the batch is entered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from operator import add

from msgstore.config import StoreConfig
from msgstore.engine.segment.segment import Segment, io_errors
from msgstore.engine.state.accounting import AppendedRun, LiveAccounting
from msgstore.engine.write.write_buffer import OVERHEAD, BufferedMessage, WriteBuffer, count_references
from msgstore.locations import NUMBER_SHIFT, OFFSET_SHIFT
from msgstore.scan import OpenFormat

_STEP = 1 << OFFSET_SHIFT


class BatchWriter:
    """One instance per open store."""

    def __init__(self, config: StoreConfig, form: OpenFormat, buffer: WriteBuffer, accounting: LiveAccounting) -> None:
        """``form``: format of new segments."""
        self._config, self._form, self._buffer, self._accounting = config, form, buffer, accounting
        self._index, self._segments = accounting.index, accounting.segments
        self.seen_large = False
        """Set before the first large body is buffered: from then on batches are searched for large bodies."""

    def write(self, ids: Sequence[bytes], max_bytes: int) -> tuple[int, list[bytes]]:
        """Write messages from the first id on, until about ``max_bytes`` are written. Raises StoreIOError: what was not entered
        stays buffered.

        Return the number of ids that were processed, and the ids among them that must be written again: the older record
        that the lookup found has died since.
        """
        with self._accounting.state_lock:
            entries = self._buffer.peek(ids)
        bodies = [entry[0] for entry in entries if entry]
        charged = sum(map(len, bodies)) + OVERHEAD * len(bodies)
        if charged > max_bytes + max_bytes // 4 and len(bodies) > 1:
            so_far = list(accumulate(len(entry[0]) + OVERHEAD if entry else 0 for entry in entries))
            count = min(bisect_left(so_far, max_bytes) + 1, len(ids))
            ids, entries, charged = ids[:count], entries[:count], so_far[count - 1]
            bodies = [entry[0] for entry in entries if entry]
        processed = len(ids)
        if not bodies:
            return processed, []
        if len(bodies) < processed:
            ids = [msg_id for msg_id, entry in zip(ids, entries, strict=True) if entry]
        known = self._known(ids)
        new_ids, new_bodies = ids, bodies
        if known is not None:
            new_ids = [msg_id for msg_id, there in zip(ids, known, strict=True) if not there]
            new_bodies = [body for body, there in zip(bodies, known, strict=True) if not there]
        locations, runs = self.append(new_ids, new_bodies) if new_ids else ([], [])
        with self._accounting.state_lock, self._accounting.change, io_errors(self._segments.directory):
            rewrite = self._enter(ids, known, locations, runs)
            self._buffer.estimated_bytes -= charged
            self._accounting.appended_bytes += charged
            self._buffer.mean_charge = charged / len(ids)
        return processed, rewrite

    def _known(self, ids: Sequence[bytes]) -> list[bool] | None:
        """Return which ids have a record already, live or revivable; None if none has."""
        with io_errors(self._segments.directory):
            located = list(map(self._index.get, ids))
        revivable = self._accounting.revivable
        if located.count(None) == len(ids) and (not revivable or revivable.keys().isdisjoint(ids)):
            return None
        return [location is not None or msg_id in revivable for msg_id, location in zip(ids, located, strict=True)]

    def _enter(
        self, ids: Sequence[bytes], known: list[bool] | None, locations: Sequence[int], runs: Sequence[AppendedRun]
    ) -> list[bytes]:
        """Move entries from the buffer into the index. Return the ids whose older record died since the lookup.

        If the index fails, what it did not get stays buffered. Caller holds the state lock.
        """
        is_plain = known is None and not self._buffer.shared
        entries = self._buffer.pop(ids)
        rewrite: list[bytes] = []
        if is_plain and all(entries):
            self._accounting.add_live(runs)
            try:
                self._accounting.enter(ids, locations)
            except BaseException:
                self._buffer.reinsert(zip(ids, entries, strict=True))
                raise
        else:
            rewrite = self._enter_mixed(ids, known, locations, entries, runs)
        if runs:
            self._segments.telemetry.wrote(runs)
        return rewrite

    def _enter_mixed(
        self,
        ids: Sequence[bytes],
        known: list[bool] | None,
        locations: Sequence[int],
        entries: Sequence[BufferedMessage | None],
        runs: Sequence[AppendedRun],
    ) -> list[bytes]:
        """Enter messages of which some are known, shared, or were removed meanwhile. Return as ``_enter``."""
        waiting = {msg_id: entry for msg_id, entry in zip(ids, entries, strict=True) if entry is not None}
        rewrite: list[bytes] = []
        dead: list[tuple[bytes, int]] = []
        entered: list[tuple[bytes, int, int]] = []
        next_location = iter(locations)
        try:
            for at, (msg_id, entry) in enumerate(zip(ids, entries, strict=True)):
                if known is None or not known[at]:
                    location = next(next_location)
                    if entry is None:
                        dead.append((msg_id, location))  # removed while it was being written
                    else:
                        entered.append((msg_id, location, count_references(entry)))
                elif entry is not None and not self._add_references(msg_id, count_references(entry)):
                    rewrite.append(msg_id)
                else:
                    waiting.pop(msg_id, None)
            self._accounting.add_live(runs)
            if dead:
                self._accounting.mark_dead(dead)
            if entered:
                self._accounting.enter(*zip(*entered, strict=True))
            for msg_id, _, count in entered:
                waiting.pop(msg_id, None)
                if count > 1:
                    self._accounting.shared.ids.add(msg_id)
        finally:
            self._buffer.reinsert(waiting.items())
        return rewrite

    def _add_references(self, msg_id: bytes, count: int) -> bool:
        """Add buffered references of a message to its record. Return False if the record cannot be revived."""
        self._accounting.is_recounted = True
        is_dead = self._index.get(msg_id) is None
        if is_dead and not self._accounting.revive(msg_id):
            return False
        count -= is_dead
        for added in range(count):
            try:
                self._index.add_reference(msg_id)
            except BaseException:  # the next flush adds all of them
                with suppress(Exception):
                    self._accounting.mark_dead(self._index.release([msg_id] * (added + is_dead)).freed)
                raise
        if count:
            self._accounting.shared.ids.add(msg_id)
        return True

    # -- records ----------------------------------------------------------------------------------------------------------

    def append(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[list[int], list[AppendedRun]]:
        """Append records; return their locations, and the runs of them. A large body gets a segment of its own, so that its
        removal frees the space at once. The state lock is not held: no other thread knows these records before the index has
        them.

        Raises StoreIOError: what earlier steps of this call have appended stays in the segment, as garbage.
        """
        self._accounting.begin_change()
        locations: list[int] = []
        runs: list[AppendedRun] = []
        large = [at for at, body in enumerate(bodies) if len(body) >= self._config.large_message] if self.seen_large else []
        cuts = sorted({0, len(bodies), *large, *(at + 1 for at in large)})
        for begin, end in pairwise(cuts):
            is_alone = begin in large
            current = self._segments.current
            if is_alone and (current is None or current.size > current.header_bytes):
                self.roll()
            part_ids = ids[begin:end] if end - begin < len(ids) else ids
            with io_errors(self._segments.directory):
                data, sizes = self._form.encode(part_ids, bodies[begin:end] if end - begin < len(bodies) else bodies)
            ends = list(accumulate(sizes))
            view, done, base = memoryview(data), 0, 0
            while done < len(ends):
                segment = self._segments.current
                if segment is None or segment.size >= self._config.file_size_limit:
                    segment = self.roll()
                room = self._config.file_size_limit - segment.size
                cut = min(bisect_left(ends, base + room, done) + 1, len(ends))  # with the record that reaches the limit
                count, size, offset = cut - done, ends[cut - 1] - base, segment.size
                self._accounting.mark_dirty(segment)
                self._segments.append(view[base : base + size])
                part = sizes[done:cut] if count < len(sizes) else sizes
                self._segments.hints.add(segment, offset, part_ids[done:cut] if count < len(sizes) else part_ids, part)
                # locations as of ``pack_location``: each record begins where the one before it ends
                first = segment.number << NUMBER_SHIFT | offset << OFFSET_SHIFT
                locations.extend(map(add, accumulate(map(_STEP.__mul__, part), initial=first), part))
                runs.append((segment, count, size))
                done, base = cut, base + size
            if is_alone:
                self.seal(appendable=False)
        return locations, runs

    def roll(self) -> Segment:
        """Seal the current segment and start a new one. Raises StoreIOError: then there may be no current segment."""
        self.seal()
        try:
            segment = self._segments.roll(self._form)
        except BaseException:
            for segment in self._segments.unwritable:  # the file may exist: without a row the index would be rebuilt
                self._accounting.mark_dirty(segment)
            raise
        self._accounting.mark_dirty(segment)
        return segment

    def seal(self, *, appendable: bool = True) -> None:
        """Seal the current segment; there is none until the next ``roll``. Raises StoreIOError."""
        segment = self._segments.current
        if segment is None:
            self._segments.seal_current()
            return
        self._segments.check_current()  # the last chance to notice that its file was replaced
        self._accounting.begin_change()
        segment.appendable &= appendable
        try:
            self._segments.seal_current()
        finally:
            with self._accounting.state_lock:
                self._accounting.on_sealed(segment)
