"""BatchWriter: from the intake into the segments, and from there into the index.

With ``LiveAccounting.flushing``, without the lock, which is taken to look into the intake and to enter what was appended: between the
two writers, removers and readers go on, and what they change meanwhile is seen when the batch is entered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, islice

import attrs

from msgstore.engine.segment.errors import io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.write.appender import Appender, AppendResult
from msgstore.engine.write.write_buffer import OVERHEAD, Entry, WriteBuffer, references


@attrs.frozen
class Written:
    """What came of one batch."""

    looked_at: int
    """Ids, from the first one on."""
    messages: int = 0
    """Of these, those that were still there."""
    weight: int = 0
    """Their bytes, OVERHEAD included."""
    late: Sequence[bytes] = ()
    """Ids that have to be written by another batch after all."""


class BatchWriter:
    """Of one open store."""

    def __init__(self, intake: WriteBuffer, appender: Appender, ledger: LiveAccounting) -> None:
        self._intake = intake
        self._appender = appender
        self._ledger = ledger
        self._index = ledger.index
        self._directory = ledger.segments.directory

    def write(self, ids: Sequence[bytes], weight: int) -> Written:
        """Write the first of ``ids``, up to about so many bytes. Raises StoreIOError: then all of it is still in the intake.

        What the body codec fails for is dropped, and noted in ``RejectedMessages``."""
        with self._ledger.lock:
            entries = self._intake.entries(ids)
        looked_at, ids, bodies, size = _cut(ids, entries, weight)
        if not ids:
            return Written(looked_at)
        known = self._known(ids)
        new_ids, new_bodies = ids, bodies
        if known is not None:
            new_ids = [msg_id for msg_id, there in zip(ids, known, strict=True) if not there]
            new_bodies = [body for body, there in zip(bodies, known, strict=True) if not there]
        appended = self._appender.append(new_ids, new_bodies) if new_ids else AppendResult()
        with self._ledger.lock, io_errors(self._directory):
            return Written(looked_at, len(ids), size, self._enter(ids, known, appended))

    def _known(self, ids: Sequence[bytes]) -> list[bool] | None:
        """Which ids have a record already, alive or to be revived; None if none has."""
        with io_errors(self._directory):
            located = list(map(self._index.get, ids))
        lingering = self._ledger.lingering
        if located.count(None) == len(ids) and (not lingering or lingering.keys().isdisjoint(ids)):
            return None
        return [location is not None or msg_id in lingering for msg_id, location in zip(ids, located, strict=True)]

    def _enter(self, ids: Sequence[bytes], known: list[bool] | None, appended: AppendResult) -> list[bytes]:
        """Under the lock: from the intake into the index. Returns the ids that were known, and are not any more.

        If the index fails, what it did not get stays in the intake."""
        plain = known is None and not self._intake.shared
        entries = self._intake.pop(ids)
        if plain and all(entries):
            try:
                self._index.enter(ids, appended.locations)
            except BaseException:
                for msg_id, entry in zip(ids, entries, strict=True):
                    assert entry is not None
                    self._intake.put_back(msg_id, entry)
                raise
            self._ledger.appended(appended.parts)
            return []
        late: list[bytes] = []
        dead: list[tuple[bytes, int]] = []
        entered: list[tuple[bytes, int, int]] = []
        left = dict(zip(ids, entries, strict=True))
        places = iter(appended.locations)
        try:
            for at, (msg_id, entry) in enumerate(zip(ids, entries, strict=True)):
                if known is None or not known[at]:
                    location = next(places)
                    if entry is None:
                        dead.append((msg_id, location))  # removed while it was being written
                    else:
                        entered.append((msg_id, location, references(entry)))
                elif entry is None or self._add_references(msg_id, entry):
                    left[msg_id] = None
                else:
                    late.append(msg_id)
            if entered:
                self._index.enter(*zip(*entered, strict=True))
                self._ledger.shared.ids.update(msg_id for msg_id, _, count in entered if count > 1)
            left.update((msg_id, None) for msg_id, _, _ in entered)
        finally:
            for msg_id, entry in left.items():
                if entry is not None:
                    self._intake.put_back(msg_id, entry)
        self._ledger.appended(appended.parts)
        self._ledger.bury(dead)
        return late

    def _add_references(self, msg_id: bytes, entry: Entry) -> bool:
        self._ledger.recounted = True
        more = references(entry)
        if self._index.get(msg_id) is None:
            if not self._ledger.revive(msg_id):
                return False
            more -= 1
        for _ in range(more):
            self._index.add_reference(msg_id)
        if more:
            self._ledger.shared.ids.add(msg_id)
        return True


def _cut(
    ids: Sequence[bytes], entries: Sequence[Entry | None], weight: int
) -> tuple[int, Sequence[bytes], Sequence[bytes], int]:
    """How many of ``ids`` are looked at; of these the ones that are still there, at least one, up to about ``weight`` bytes,
    with their bodies; and what they weigh."""
    looked_at = len(ids)
    if not all(entries):
        ids = [msg_id for msg_id, entry in zip(ids, entries, strict=True) if entry]
    bodies = [entry[0] for entry in entries if entry]
    size = sum(map(len, bodies)) + OVERHEAD * len(bodies)
    if size > weight + weight // 4 and len(bodies) > 1:
        so_far = list(accumulate(map(OVERHEAD.__add__, map(len, bodies))))
        count = min(bisect_left(so_far, weight) + 1, len(bodies))
        if count < len(bodies):
            looked_at = count if len(ids) == looked_at else _position(entries, count)
            ids, bodies, size = ids[:count], bodies[:count], so_far[count - 1]
    return looked_at, ids, bodies, size


def _position(entries: Sequence[Entry | None], count: int) -> int:
    """Behind the ``count``-th that is there."""
    return next(islice((at for at, entry in enumerate(entries, 1) if entry), count - 1, None))
