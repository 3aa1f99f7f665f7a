"""The index ``ets``: two dictionaries, and a snapshot between a clean stop and the next start.

Upstream keeps the same in an Erlang ETS table, hence the name; its own ``.ets`` files are no snapshots of this index.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from msgstore.contract import RESCUED_KEY, IndexContext, Released
from msgstore_ets_index import snapshot

_log = logging.getLogger("msgstore.index")

FILE = "msgstore-ets.snapshot"
KEPT = FILE + ".damaged"
"""Name of a damaged snapshot after the first commit."""


class EtsIndex:
    """An :class:`msgstore.contract.Index` in memory.

    An entry is a ``bytes`` and an ``int`` in one dictionary: about 140 bytes, nothing that the garbage collector walks.
    Almost every message has one reference, so only the others have a count.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._entries: dict[bytes, int] = {}
        self._counts: dict[bytes, int] = {}  # of the entries with more than one reference
        self._closed = False
        self._has_snapshot = True  # as far as is known
        self._is_damaged = False
        # Every read and every write asks: a call of the method below costs twice what the lookup itself does.
        self.get = self._entries.get  # type: ignore[assignment, method-assign]

    def load(self) -> dict[bytes, bytes] | None:
        """The state of the last clean stop; None if there was none since, or if its snapshot is damaged (logged)."""
        try:
            state = snapshot.read(self._context.files.read_file(self._path), self._entries, self._counts)
        except FileNotFoundError:
            return None
        except snapshot.BadSnapshot as error:
            self._is_damaged = True
            _log.warning("%s cannot be used, the index is rebuilt from the segments: %s", self._path, error)
            return None
        if RESCUED_KEY in state:
            self._is_damaged = True
            _log.warning("%s: the checksum does not match; each entry is compared with its record", self._path)
        self._context.shared.update(self._counts)
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
        """Copies references to ids and locations: 16 bytes an entry for as long as the iterator lives."""
        ids = list(self._entries)
        return zip(ids, list(self._entries.values()), map(self._counts.copy().get, ids, repeat(1)), strict=True)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        self._entries.update(zip(ids, locations, strict=True))
        if references is not None:
            for msg_id, count in zip(ids, references, strict=True):
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

    def release(self, ids: Sequence[bytes]) -> Released:
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
        return Released(freed, missing)

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
        """Nothing: what is in memory is not made durable before ``close``."""

    def commit(self) -> None:
        """The first one removes the snapshot, so that a crash leaves none. A damaged one is renamed. Later ones do nothing."""
        if self._has_snapshot and not self._context.read_only:
            if self._is_damaged:
                self._context.files.replace(self._path, self._path.with_name(KEPT))
            else:
                self._context.files.unlink(self._path)
            self._has_snapshot = self._is_damaged = False

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        """Write the snapshot, atomically, if ``state`` is given and the index is not read-only; then drop everything.

        If the write raises (OSError), nothing is dropped and it can be tried again. Closing twice is fine.
        """
        if not (self._closed or state is None or self._context.read_only):
            chunks = snapshot.write(self._entries, self._counts, state)
            self._context.files.write_file(self._path, chunks, sync=self._context.sync)
        self._closed = True
        self.clear()
