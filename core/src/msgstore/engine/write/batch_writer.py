"""Batch writer: moves a batch from the write buffer into segments, and from there into the index.

Callers hold the flush lock. The state lock is taken to look into the buffer and to enter what was appended; writers, removers
and readers go on in between, and their changes are seen when the batch is entered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice

import attrs

from msgstore.engine.segment.segment import io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.write.appender import Appender, AppendResult
from msgstore.engine.write.message_buffer import OVERHEAD, BufferedMessage, Popped
from msgstore.engine.write.write_buffer import WriteBuffer, count_references


@attrs.frozen
class BatchResult:
    """Result of one batch."""

    looked_at: int
    """Number of ids that were processed, from the first on."""
    rewrite: Sequence[bytes] = ()
    """Ids whose record died since the lookup: another batch has to write them."""


class BatchWriter:
    """One instance per open store."""

    def __init__(self, buffer: WriteBuffer, appender: Appender, accounting: LiveAccounting) -> None:
        self._buffer = buffer
        self._appender = appender
        self._accounting = accounting
        self._index = accounting.index
        self._directory = accounting.segments.directory

    def write(self, ids: Sequence[bytes], max_bytes: int) -> BatchResult:
        """Write the first of ``ids``, about ``max_bytes`` of them. Raises StoreIOError: then all of them are still buffered."""
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
        appended = self._appender.append(new_ids, new_bodies) if new_ids else AppendResult()
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
        """Move entries from the buffer into the index. Return the ids whose record died since the lookup.

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
            self._accounting.segments.telemetry.wrote(appended.runs)
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


def _cut(
    ids: Sequence[bytes], entries: Sequence[BufferedMessage | None], max_bytes: int
) -> tuple[int, Sequence[bytes], Sequence[bytes], int]:
    """Return how many ids are processed; the ids of these that are still buffered, at least one, about ``max_bytes``; their
    bodies; their charged bytes."""
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
