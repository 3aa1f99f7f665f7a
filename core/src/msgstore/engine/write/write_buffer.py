"""Write buffer: messages that clients have written and that are not on disk yet. Reads look here first.

``write`` and ``remove`` of a buffered message take no lock, because a lock would cost half the time of a ``write`` and the
``remove`` soon after it (see ``docs/adr/0011``). Each relies on one atomic operation on ``pending``, which maps an id to
``(body, client number)``, one reference: a tuple of bytes and int, which the garbage collector does not track.

- ``pending.setdefault`` selects one of several concurrent writers of an id. The others take the slow path.
- ``pending.pop`` gives an entry to one remover, or to the flush. A remover that has popped the reference of another client
  takes the slow path: it removes a reference of its own client instead if there is one, and puts the entry back.

The slow path holds the state lock. It counts every further reference in ``extra``, independently of ``pending``. So under the
state lock an id that is in neither of them, nor in the index, is absent.

The flush looks entries up, appends them, and pops them under the state lock when the index gets them. An id without references
by then was removed: its new record is dead. Whether the index has an id already is checked by the flush, for a whole batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from msgstore.contract import MsgStoreError
from msgstore.engine.client import FastPath

BufferedMessage = tuple[bytes, int]
"""(stored body, number of the client that wrote it)."""
OVERHEAD = 1024
"""Bytes that a message is charged in addition to its body, so that many small messages do not fill the memory."""
Popped = tuple[bytes, BufferedMessage | None]
"""(id, entry that the caller has popped from ``pending``, or None)."""


class WriteBuffer:
    """One instance per open store. Callers of the methods hold the state lock, unless a method says otherwise."""

    def __init__(self, is_indexed: Callable[[bytes], bool]) -> None:
        self.pending: dict[bytes, BufferedMessage] = {}
        """Entries in write order. Never replaced: fast paths are bound to it."""
        self.extra: dict[bytes, tuple[bytes, tuple[dict[int, int], dict[int, int]]]] = {}
        """Further references: stored body, number of references by client number, and new owners. A client whose entry another
        remover has in hand takes a reference of another client, to whom that entry belongs from then on."""
        self.before_removals: list[Callable[[Iterable[bytes]], None]] = []
        """Empty, or one function to call before a removal pops anything: it flushes, and raises if that fails."""
        self.estimated_bytes = 0
        """Bytes that clients have charged and no batch has written: removals are not subtracted. Guarded by the state lock."""
        self.mean_charge = 0.0
        """Charged bytes per message in the last batch or count. Guarded by the state lock."""
        self._is_indexed = is_indexed
        self._dropped: deque[int] = deque(maxlen=1000)
        """Numbers of recently dropped clients: a remover may still hold an entry of theirs."""

    def make_fast_path(
        self,
        client: int,
        unconfirmed: list[bytes] | None,
        size_limit: int,
        charge_step: int,
        wake: Callable[[], object],
        charge: Callable[[int], object],
        slow_path: Callable[[bytes, bytes], object],
    ) -> FastPath:
        """Return the ``write`` of a client, which takes no lock but in ``charge``: that may wait, drain or flush.

        ``wake`` is called before the first message in an empty buffer, ``charge(bytes)`` after each ``charge_step`` bytes,
        OVERHEAD included. ``slow_path`` gets what needs the lock, or is not valid.
        """
        pending, setdefault = self.pending, self.pending.setdefault  # local names: here nanoseconds count
        charged = 0

        def write(msg_id: bytes, body: bytes) -> None:
            nonlocal charged
            if msg_id.__class__ is bytes and body.__class__ is bytes and len(msg_id) == 16 and (size := len(body)) < size_limit:
                if not pending:
                    wake()
                entry = (body, client)
                if setdefault(msg_id, entry) is entry:
                    if unconfirmed is not None:  # after the entry, so that a flush finds the entry of each id that it confirms
                        unconfirmed.append(msg_id)
                    charged += size + OVERHEAD
                    if charged >= charge_step:
                        due, charged = charged, 0
                        charge(due)
                    return
            slow_path(msg_id, body)

        def set_size_limit(size: int) -> None:
            nonlocal size_limit
            size_limit = size

        return FastPath(write, set_size_limit)

    def make_remover(self, client: int, slow_path: Callable[[list[Popped]], object]) -> Callable[[Iterable[bytes]], None]:
        """Return the ``remove`` of a client, which takes no lock for messages whose entry is of this client."""
        pop, before = self.pending.pop, self.before_removals

        def remove(ids: Iterable[bytes]) -> None:
            if isinstance(ids, bytes):
                raise ValueError("remove takes several ids: write remove([msg_id])")  # noqa: TRY004 - as for every wrong id
            if before:
                before[0](ids)
            rest: list[Popped] | None = None
            msg_id: object = None
            try:
                for msg_id in ids:
                    entry = pop(msg_id, None)
                    if entry is None or entry[1] != client:
                        if rest is None:
                            rest = []
                        rest.append((msg_id, entry))
            except BaseException as error:  # the ids before it are removed all the same
                if rest is not None:
                    with suppress(ValueError, MsgStoreError):
                        slow_path(rest)
                iter(ids)  # raises TypeError if it is not iterable
                if isinstance(error, TypeError) and not isinstance(msg_id, bytes | None):
                    raise ValueError(f"a message id is 16 bytes, not {type(msg_id).__name__}") from error  # noqa: TRY004
                raise
            if rest is not None:
                slow_path(rest)

        return remove

    def get(self, msg_id: bytes) -> tuple[bytes, object] | None:
        """Return the stored body of an id, as the first of two values."""
        return self.pending.get(msg_id) or self.extra.get(msg_id)

    def references(self, msg_id: bytes) -> int:
        """Return the number of references of a buffered message; 0 if it is not here."""
        return (msg_id in self.pending) + self.count_extra(msg_id)

    def count_extra(self, msg_id: bytes) -> int:
        """Return the number of references in ``extra``."""
        more = self.extra.get(msg_id)
        return 0 if more is None else sum(more[1][0].values())

    def add(self, msg_id: bytes, entry: BufferedMessage) -> None:
        """Add one reference of a client, with the message if it is not here. Also puts back an entry that was popped."""
        first = self.pending.setdefault(msg_id, entry)
        if first is not entry:
            client = entry[1]
            owners = self.extra.setdefault(msg_id, (first[0], ({}, {})))[1][0]
            owners[client] = owners.get(client, 0) + 1

    def add_all(self, popped: Iterable[Popped]) -> None:
        """Put back entries that were popped and have to be written again."""
        for msg_id, entry in popped:
            if entry is not None:
                self.add(msg_id, entry)

    def restore(self, msg_id: bytes, entry: BufferedMessage) -> None:
        """Put back an entry that a remover has popped, unless its client was dropped meanwhile."""
        owner = self._owner(msg_id, entry)
        if owner not in self._dropped or self._is_indexed(msg_id):
            self.add(msg_id, (entry[0], owner))

    def release_reference(self, msg_id: bytes, client: int, popped: BufferedMessage | None) -> bool:
        """Remove one reference, preferably of this client. Return False if there is none. ``popped``: entry that was popped."""
        entry = popped or self.pending.pop(msg_id, None)
        if msg_id not in self.extra:
            return entry is not None
        owners, new_owners = self.extra[msg_id][1]
        if entry is not None:
            entry = entry[0], self._owner(msg_id, entry)
            if entry[1] == client or client not in owners:
                return True
            self.restore(msg_id, entry)
        elif client not in owners:
            new_owners[client] = next(iter(owners))
            client = new_owners[client]
        owners[client] -= 1
        if not owners[client]:
            self._forget_owner(msg_id, client)
        return True

    def _owner(self, msg_id: bytes, entry: BufferedMessage) -> int:
        """Return the client to whom a popped entry belongs now."""
        more = self.extra.get(msg_id)
        return entry[1] if more is None else more[1][1].pop(entry[1], entry[1])

    def drop_client(self, client: int) -> None:
        """Drop the messages that only this client has written, unless the index has the id."""
        self._dropped.append(client)
        for msg_id, (_, (owners, _)) in list(self.extra.items()):
            if client in owners and not self._is_indexed(msg_id):
                self._forget_owner(msg_id, client)
        for msg_id, entry in list(self.pending.items()):
            if entry[1] == client and not self._is_indexed(msg_id):
                popped = self.pending.pop(msg_id, None)
                if popped is not None and popped is not entry:  # removed and written again meanwhile
                    self.add(msg_id, popped)

    def _forget_owner(self, msg_id: bytes, client: int) -> None:
        owners, _ = self.extra[msg_id][1]
        del owners[client]
        if not owners:
            del self.extra[msg_id]

    def ids(self) -> list[bytes]:
        """Return the ids of all messages in write order."""
        ids = list(self.pending)
        return ids + [msg_id for msg_id in self.extra if msg_id not in self.pending] if self.extra else ids

    def oldest(self, count: int) -> list[bytes]:
        """Return up to ``count`` ids in write order. Needs no lock."""
        while True:
            try:
                return list(islice(self.pending, count))
            except RuntimeError:  # a writer has changed the dictionary, which happens without the interpreter lock
                continue

    def peek(self, ids: Sequence[bytes]) -> list[tuple[bytes, object] | None]:
        """Return the stored body of each id, as the first of two values, or None if it was removed."""
        found: list[tuple[bytes, object] | None] = list(map(self.pending.get, ids))
        return list(map(self.get, ids)) if self.extra and not all(found) else found

    def count(self) -> None:
        """Count the bytes of all messages, OVERHEAD included. Takes time linear in the number of messages."""
        bodies = [body for body, _ in list(self.pending.values())]
        self.estimated_bytes = sum(map(len, bodies)) + OVERHEAD * len(bodies)
        self.mean_charge = self.estimated_bytes / max(len(bodies), 1)

    def clear(self) -> None:
        """Drop everything."""
        self.pending.clear()
        self.extra.clear()
