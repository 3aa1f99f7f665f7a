"""Index ``ets``: two dictionaries in memory, and a snapshot file between a clean shutdown and the next opening.

RabbitMQ keeps the same data in an Erlang ETS table, hence the name. RabbitMQ's ``.ets`` files are not snapshots of this index.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from msgstore.contract import RESCUED_KEY, IndexContext, ReleaseResult
from msgstore_ets_index import snapshot

_log = logging.getLogger("msgstore.index")

FILE = "msgstore-ets.snapshot"
DAMAGED_FILE = FILE + ".damaged"
"""New name of a damaged snapshot, so that the next close does not replace it."""


class EtsIndex:
    """In-memory implementation of :class:`msgstore.contract.Index`.

    An entry is a ``bytes`` key and an ``int`` value in one dictionary: about 140 bytes, and no object that Python's garbage
    collector tracks. Almost every message has one reference, so counts are stored only for messages with more.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._entries: dict[bytes, int] = {}
        self._counts: dict[bytes, int] = {}  # only entries with more than one reference
        self._closed = False
        self._has_snapshot = True  # assumed until the first commit
        self._is_damaged = False
        # Called for every read and write. The method below would cost twice as much as the lookup itself.
        self.get = self._entries.get  # type: ignore[assignment, method-assign]

    def load(self) -> dict[bytes, bytes] | None:
        """Restore the entries of the last clean shutdown and return the state saved with them.

        Returns None if there is no snapshot, or if it is damaged (logged). If only the checksum is wrong, the state has
        ``RESCUED_KEY``.
        """
        try:
            state = snapshot.read(self._context.files.read_file(self._path), self._entries, self._counts)
        except FileNotFoundError:
            return None
        except snapshot.InvalidSnapshot as error:
            self._is_damaged = True
            _log.warning("%s: cannot be used: %s. The index is rebuilt from the segments", self._path, error)
            return None
        if RESCUED_KEY in state:
            self._is_damaged = True
            _log.warning("%s: the checksum does not match; each entry is compared with its record", self._path)
        return state

    def clear(self) -> None:
        self._entries.clear()
        self._counts.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, msg_id: bytes) -> int | None:
        return self._entries.get(msg_id)

    def references(self, msg_id: bytes) -> int:
        return self._counts.get(msg_id, 1) if msg_id in self._entries else 0

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call.

        The iterator holds lists of the ids and locations: 16 bytes per entry.
        """
        ids = list(self._entries)
        return zip(ids, list(self._entries.values()), map(self._counts.copy().get, ids, repeat(1)), strict=True)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        entries = dict(zip(ids, locations, strict=True))
        counts = None if references is None else list(zip(ids, references, strict=True))
        self._entries.update(entries)  # nothing is changed if one of the iterables raises
        if counts is not None:
            for msg_id, count in counts:
                if count > 1:
                    self._counts[msg_id] = count
                else:
                    self._counts.pop(msg_id, None)
        elif self._counts:
            for msg_id in self._counts.keys() & ids:
                del self._counts[msg_id]

    def add_reference(self, msg_id: bytes) -> bool:
        if msg_id not in self._entries:
            return False
        self._counts[msg_id] = self._counts.get(msg_id, 1) + 1
        return True

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        freed: list[tuple[bytes, int]] = []
        missing: list[bytes] = []
        counts, pop = self._counts, self._entries.pop
        for msg_id in ids:
            if counts and msg_id in counts:
                self._release_shared(msg_id)
            elif (location := pop(msg_id, None)) is not None:
                freed.append((msg_id, location))
            else:
                missing.append(msg_id)
        return ReleaseResult(freed, missing)

    def _release_shared(self, msg_id: bytes) -> None:
        left = self._counts[msg_id] - 1
        if left > 1:
            self._counts[msg_id] = left
        else:
            del self._counts[msg_id]

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moved = {msg_id: to for msg_id, at, to in zip(ids, old, new, strict=True) if self.get(msg_id) == at}
        self._entries.update(moved)
        return len(moved)

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        """Do nothing: this index makes nothing durable before ``close``."""

    def commit(self) -> None:
        """Delete the snapshot at the first call, so that a crash leaves none; later calls do nothing.

        A damaged snapshot is renamed instead.
        """
        if self._has_snapshot and not self._context.read_only:
            if self._is_damaged:
                self._context.files.replace(self._path, self._path.with_name(DAMAGED_FILE))
            else:
                self._context.files.unlink(self._path)
            self._has_snapshot = self._is_damaged = False

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Write the snapshot atomically if ``state`` is not None and the index is not read-only. Then drop all entries.

        Raises OSError if the write fails: then nothing is dropped, and the call can be repeated. A second call does nothing.
        """
        if not (self._closed or state is None or self._context.read_only):
            chunks = snapshot.write(self._entries, self._counts, state)
            self._context.files.write_file(self._path, chunks, sync=self._context.sync)
        self._closed = True
        self.clear()
