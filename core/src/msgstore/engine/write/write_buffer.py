"""The intake: what was written and is not on disk yet. Also the read cache of what was just written.

``write`` and ``remove`` of a message that is still here take no lock; each rests on one operation of a dictionary that is
atomic whatever threads do: ``setdefault`` tells one of many writers that its entry is the first, ``pop`` hands an entry to one
of many removers, or to the flush. Whoever loses goes the slow way, under the store's lock:

- A message that is here once has the entry ``(body, client number)``. The number, not the client: what refers to no object but
  bytes and integers is let go of by the garbage collector, and there may be thousands.
- A second reference, under the lock, makes it ``(body, {client number: references})``, also found in ``shared``. Only the
  lock's holder changes ``shared``; whoever has the lock and finds an id neither in ``pending`` nor in ``shared`` nor in the
  index can say that it is absent, even while a remover has popped the entry and waits for the lock to put it back with one
  reference less.
- The flush copies entries, writes, and pops them under the lock when the index gets them. What was popped meanwhile was
  removed: its record is dead before anybody has seen it.

Whether the index knows an id already is asked by the flush, for a whole batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice, repeat

import attrs

from msgstore.contract import MsgStoreError

Entry = tuple[bytes, int | dict[int, int]]
"""(body, number of the client that wrote it, or of each client that did how many times)."""
OVERHEAD = 1024
"""Bytes that a message counts beside its body: so many small ones are not worth holding back."""


@attrs.frozen
class FastPath:
    """The fast way in of one client."""

    write: Callable[[bytes, bytes], None]
    limit: Callable[[int], None]
    """Bodies of so many bytes and more go the slow way from now on; 0 sends all of them."""
    portion: Callable[[int], None]
    """The client reports after so many bytes from now on."""


class WriteBuffer:
    """Of one open store. Methods are called under the store's lock, the functions of a FastPath and ``remove`` without it."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Entry] = {}
        """In the order of writing. Never another object: readers and writers are bound to it."""
        self.shared: dict[bytes, tuple[bytes, dict[int, int]]] = {}
        """The entries with several references, also while they are not in ``pending`` for an instant."""
        self.before_removals: list[Callable[[Iterable[bytes]], None]] = []
        """Empty, or one function that refuses a removal of these ids before any of them is popped."""
        self._dropped: deque[int] = deque(maxlen=1000)
        """Clients of which ``drop_client`` was told lately: a remover may still have an entry of theirs in its hand."""

    def gate(
        self,
        number: int,
        unconfirmed: list[bytes] | None,
        limit: int,
        portion: int,
        wake: Callable[[], object],
        due: Callable[[int], object],
        slowly: Callable[[bytes, bytes], object],
    ) -> FastPath:
        """``due(weight)`` is called whenever the client has written some ``portion`` bytes, OVERHEAD included; ``wake`` before
        the first message after a while. A function whose names are all its own: here nanoseconds count."""
        pending, setdefault = self.pending, self.pending.setdefault
        weight = 0

        def write(msg_id: bytes, body: bytes) -> None:
            nonlocal weight
            if msg_id.__class__ is bytes and body.__class__ is bytes and len(msg_id) == 16 and (size := len(body)) < limit:
                if not pending:
                    wake()
                entry = (body, number)
                if setdefault(msg_id, entry) is entry:
                    if unconfirmed is not None:  # behind the entry: a flush confirms what it has found before its batch
                        unconfirmed.append(msg_id)
                    weight += size + OVERHEAD
                    if weight >= portion:
                        whole, weight = weight, 0
                        due(whole)
                    return
            slowly(msg_id, body)

        def set_limit(size: int) -> None:
            nonlocal limit
            limit = size

        def set_portion(size: int) -> None:
            nonlocal portion
            portion = size

        return FastPath(write, set_limit, set_portion)

    def remover(
        self, number: int, slowly: Callable[[list[tuple[bytes, Entry | None]]], object]
    ) -> Callable[[Iterable[bytes]], None]:
        """``remove(ids)`` of one client: what has one reference, its own, and that here, goes at once. The other ids are handed
        over, each with what was popped."""
        pop, before = self.pending.pop, self.before_removals

        def remove(ids: Iterable[bytes]) -> None:
            if isinstance(ids, bytes):
                raise ValueError("remove takes several ids: write remove([msg_id])")  # noqa: TRY004 - as for every wrong id
            if before:
                before[0](ids)
            rest = None
            msg_id: object = None
            try:
                for msg_id in ids:
                    entry = pop(msg_id, None)
                    if entry is None or entry[1] != number:
                        if rest is None:
                            rest = []
                        rest.append((msg_id, entry))
            except BaseException as error:  # what came before it is removed, or it would be nowhere
                if rest is not None:
                    with suppress(ValueError, MsgStoreError):
                        slowly(rest)
                iter(ids)  # raises what it is, if it is not several
                if isinstance(error, TypeError) and not isinstance(msg_id, bytes | None):
                    raise ValueError(f"a message id is 16 bytes, not {type(msg_id).__name__}") from error  # noqa: TRY004
                raise
            if rest is not None:
                slowly(rest)

        return remove

    def add(self, msg_id: bytes, body: bytes, number: int) -> None:
        """One more reference."""
        shared = self.shared.get(msg_id)
        if shared is not None:
            shared[1][number] = shared[1].get(number, 0) + 1
            return
        first = self.pending.pop(msg_id, None)
        if first is None:
            mine = (body, number)
            if self.pending.setdefault(msg_id, mine) is not mine:
                self.add(msg_id, body, number)
            return
        owners = _owners(first)
        owners[number] = owners.get(number, 0) + 1
        shared = self.shared[msg_id] = first[0], owners
        self._put_back(msg_id, shared)

    def _put_back(self, msg_id: bytes, entry: tuple[bytes, dict[int, int]]) -> None:
        while self.pending.setdefault(msg_id, entry) is not entry:
            other = self.pending.pop(msg_id, None)  # of a writer who found nothing meanwhile
            if other is not None:
                for number, count in _owners(other).items():
                    entry[1][number] = entry[1].get(number, 0) + count

    def take_one(self, msg_id: bytes, number: int, popped: Entry | None) -> bool:
        """Remove one reference, of client ``number`` if it has one, else of any. False if there is none here. ``popped``: what
        the remover has in its hand."""
        shared = self.shared.get(msg_id)
        if popped is not None and not isinstance(popped[1], dict):
            # Another client's, and gone already: a shared entry was in somebody's hand, and this one was written meanwhile.
            # What client ``number`` has there becomes the other one's.
            if shared is not None and number in shared[1]:
                _move(shared[1], number, None if popped[1] in self._dropped else popped[1])
                self._settle_shared(msg_id, shared)
            return True
        if shared is None:
            return self.pending.pop(msg_id, None) is not None
        _move(shared[1], number if number in shared[1] else next(iter(shared[1])), None)
        self._settle_shared(msg_id, shared)
        return True

    def hand_back(self, popped: Iterable[tuple[bytes, Entry | None]], known: Callable[[bytes], bool]) -> None:
        """What a remover has popped, and does not remove after all. ``known`` as of ``drop_client``."""
        for msg_id, entry in popped:
            if entry is None:
                continue
            if not isinstance(entry[1], dict):
                if entry[1] not in self._dropped or known(msg_id):
                    self._put_plain(msg_id, entry)
            elif msg_id in self.shared:
                self._put_back(msg_id, self.shared[msg_id])

    def _settle_shared(self, msg_id: bytes, entry: tuple[bytes, dict[int, int]]) -> None:
        """After its owners have changed: ``pending`` has it, or nobody does."""
        if entry[1]:
            self._put_back(msg_id, entry)
        else:
            del self.shared[msg_id]
            last = self.pending.pop(msg_id, None)
            if last is not None and last is not entry:  # written anew by somebody who found nothing
                self._put_plain(msg_id, last)

    def _put_plain(self, msg_id: bytes, entry: Entry) -> None:
        if self.pending.setdefault(msg_id, entry) is not entry:
            for number, count in _owners(entry).items():
                for _ in range(count):
                    self.add(msg_id, entry[0], number)

    def drop_client(self, number: int, known: Callable[[bytes], bool]) -> None:
        """Forget what only this client has written, unless the id is ``known`` elsewhere."""
        self._dropped.append(number)
        for msg_id, shared in list(self.shared.items()):
            if number in shared[1] and not known(msg_id):
                del shared[1][number]
                self._settle_shared(msg_id, shared)
        for msg_id, entry in list(self.pending.items()):
            if entry[1] == number and not known(msg_id):
                popped = self.pending.pop(msg_id, None)
                if popped is not None and popped is not entry:  # removed and written anew meanwhile
                    self._put_plain(msg_id, popped)

    def get(self, msg_id: bytes) -> Entry | None:
        """For sure, unlike ``pending.get``."""
        return self.pending.get(msg_id) or self.shared.get(msg_id)

    def references(self, msg_id: bytes) -> int:
        entry = self.get(msg_id)
        return 0 if entry is None else references(entry)

    def ids(self) -> list[bytes]:
        """Of everything that is here, in the order of writing; behind it what a remover has in its hand, of several references:
        it may not come back before the next flush, or not at all, if the remover is interrupted."""
        ids = list(self.pending)
        return ids + [msg_id for msg_id in self.shared if msg_id not in self.pending] if self.shared else ids

    def oldest(self, count: int) -> list[bytes]:
        """Ids, at most so many."""
        while True:
            try:
                return list(islice(self.pending, count))
            except RuntimeError:  # without the interpreter's lock a writer may come between
                continue

    def entries(self, ids: Sequence[bytes]) -> list[Entry | None]:
        """None for what was removed."""
        found = list(map(self.pending.get, ids))
        if self.shared and not all(found):
            return [entry or self.shared.get(msg_id) for msg_id, entry in zip(ids, found, strict=True)]
        return found

    def pop(self, ids: Sequence[bytes]) -> list[Entry | None]:
        """Take the entries of ``ids`` out, for the index; None for what was removed."""
        found = list(map(self.pending.pop, ids, repeat(None)))
        return list(map(self._with_shared, ids, found)) if self.shared else found

    def _with_shared(self, msg_id: bytes, entry: Entry | None) -> Entry | None:
        shared = self.shared.pop(msg_id, None)
        if shared is not None and entry is not None and entry is not shared:  # written anew while a remover had it
            for number, count in _owners(entry).items():
                shared[1][number] = shared[1].get(number, 0) + count
        return shared or entry

    def put_back(self, msg_id: bytes, entry: Entry) -> None:
        """What was popped and has to be written after all."""
        if entry[1].__class__ is dict:
            shared = self.shared[msg_id] = entry[0], _owners(entry)
            self._put_back(msg_id, shared)
        else:
            self._put_plain(msg_id, entry)

    def weight(self) -> int:
        """Bytes held back, OVERHEAD included."""
        entries = list(self.pending.values())
        return sum([len(body) for body, _ in entries]) + OVERHEAD * len(entries)

    def clear(self) -> None:
        self.pending.clear()
        self.shared.clear()


def references(entry: Entry) -> int:
    owners = entry[1]
    return sum(owners.values()) if isinstance(owners, dict) else 1


def _move(owners: dict[int, int], number: int, to: int | None) -> None:
    """One reference of client ``number`` becomes another's, or nobody's."""
    owners[number] -= 1
    if not owners[number]:
        del owners[number]
    if to is not None:
        owners[to] = owners.get(to, 0) + 1


def _owners(entry: Entry) -> dict[int, int]:
    """For each client; a shared entry's own dictionary."""
    owners = entry[1]
    return owners if isinstance(owners, dict) else {owners: 1}
