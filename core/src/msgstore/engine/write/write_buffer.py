"""Write buffer: messages that clients have written and that are not entered into the index yet. Reads look here first.

A ``write`` of a new id and a ``remove`` of a buffered message take no lock, because a lock would cost half their time (see
``docs/adr/0011``). Each relies on one atomic dictionary operation:

- ``pending.setdefault`` selects one of several concurrent writers of an id. Its entry is ``(body, client number)``: a tuple of
  bytes and int, which the garbage collector does not track.
- ``pending.pop`` gives an entry to one remover, or to the flush.

A call takes the slow path, which holds the state lock, if it loses such a race, meets a message with several references, or
removes a message that another client wrote:

- A second reference turns the entry into ``(body, {client number: references})``, which is also in ``shared``. Only the holder
  of the state lock changes ``shared``. A remover that has popped such an entry from ``pending`` waits for the lock, subtracts
  its reference, and inserts the entry into ``pending`` again. Without references left the entry leaves ``shared`` instead.
- So under the state lock an id that is in neither of them, nor in the index, is absent.
- The flush copies entries, appends them, and pops them under the state lock when the index gets them. An entry that was popped
  by then was removed: its new record is dead.

Whether the index has an id already is checked by the flush, for a whole batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice, repeat

from msgstore.contract import MsgStoreError

BufferedMessage = tuple[bytes, int | dict[int, int]]
"""(stored body, number of the client that wrote it, or references by client number)."""
OVERHEAD = 1024
"""Bytes that a message is charged in addition to its body, so that many small messages do not fill the memory."""
Popped = tuple[bytes, BufferedMessage | None]
"""(id, entry that the caller has popped from the buffer, or None)."""


class WriteBuffer:
    """One instance per open store. Callers of the methods hold the state lock, unless a method says otherwise."""

    def __init__(self, is_indexed: Callable[[bytes], bool]) -> None:
        self.pending: dict[bytes, BufferedMessage] = {}
        """Entries in write order; a second reference moves an entry to the end. Never replaced: fast paths are bound to it."""
        self.shared: dict[bytes, tuple[bytes, dict[int, int]]] = {}
        """Entries with several references, also while they are not in ``pending`` for an instant."""
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
        on_error: Callable[[BaseException], object],
    ) -> tuple[Callable[[bytes, bytes], None], Callable[[int], None]]:
        """Return ``write`` and ``set_size_limit`` of a client. ``write`` takes no lock but in ``charge``.

        ``wake`` is called before the first message in an empty buffer, ``charge(bytes)`` after each ``charge_step`` bytes,
        OVERHEAD included; it may wait, drain or flush. ``slow_path`` gets what needs the lock, or is not valid. ``on_error``
        gets an exception that came between the entry and its id in ``unconfirmed``.
        """
        pending, setdefault = self.pending, self.pending.setdefault  # local names: here nanoseconds count
        charged = 0

        def write(msg_id: bytes, body: bytes) -> None:
            nonlocal charged
            if msg_id.__class__ is bytes and body.__class__ is bytes and len(msg_id) == 16 and (size := len(body)) < size_limit:
                if not pending:
                    wake()
                entry = (body, client)
                try:
                    is_first = setdefault(msg_id, entry) is entry
                    if is_first and unconfirmed is not None:  # second, so that a flush finds an entry for what it confirms
                        unconfirmed.append(msg_id)
                except BaseException as error:
                    on_error(error)
                    raise
                if is_first:
                    charged += size + OVERHEAD
                    if charged >= charge_step:
                        due, charged = charged, 0
                        charge(due)
                    return
            slow_path(msg_id, body)

        def set_size_limit(size: int) -> None:
            nonlocal size_limit
            size_limit = size

        return write, set_size_limit

    def make_remover(self, client: int, slow_path: Callable[[list[Popped]], object]) -> Callable[[Iterable[bytes]], None]:
        """Return the ``remove`` of a client, which takes no lock for messages with one reference, of this client."""
        pop, before = self.pending.pop, self.before_removals

        def remove(ids: Iterable[bytes]) -> None:
            if isinstance(ids, bytes):
                raise ValueError("remove takes several ids: write remove([msg_id])")  # noqa: TRY004 - as for every wrong id
            if before:
                for flush in before[:]:  # a commit of another thread may clear it
                    flush(ids)
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

    def add(self, msg_id: bytes, body: bytes, client: int) -> None:
        """Add one reference of a client, with the message if it is not here."""
        shared = self.shared.get(msg_id)
        if shared is not None:
            shared[1][client] = shared[1].get(client, 0) + 1
            return
        first = self.pending.pop(msg_id, None)
        if first is None:
            mine = (body, client)
            if self.pending.setdefault(msg_id, mine) is not mine:
                self.add(msg_id, body, client)
            return
        owners = _owners(first)
        owners[client] = owners.get(client, 0) + 1
        shared = self.shared[msg_id] = first[0], owners
        self._insert_shared(msg_id, shared)

    def get(self, msg_id: bytes) -> BufferedMessage | None:
        """Return the entry of an id, also while a remover has popped it."""
        return self.pending.get(msg_id) or self.shared.get(msg_id)

    def references(self, msg_id: bytes) -> int:
        """Return the number of references of a buffered message; 0 if it is not here."""
        entry = self.get(msg_id)
        return 0 if entry is None else count_references(entry)

    def release_reference(self, msg_id: bytes, client: int, popped: BufferedMessage | None) -> bool:
        """Remove one reference, preferably of this client. Return False if there is none. ``popped``: entry that was popped."""
        shared = self.shared.get(msg_id)
        if popped is not None and not isinstance(popped[1], dict):
            # In turn: a remover popped the shared entry, another client wrote the id (a new entry), this remover popped that.
            # The new entry's reference is the one to remove. If ``client`` has one in the shared entry, that one goes instead,
            # and the new one takes its place.
            if shared is not None and client in shared[1]:
                is_dropped = popped[1] in self._dropped and not self._is_indexed(msg_id)
                _transfer(shared[1], client, None if is_dropped else popped[1])
                self._update_shared(msg_id, shared)
            return True
        if shared is None:
            return self.pending.pop(msg_id, None) is not None
        _transfer(shared[1], client if client in shared[1] else next(iter(shared[1])), None)
        self._update_shared(msg_id, shared)
        return True

    def restore_popped(self, popped: Iterable[Popped]) -> None:
        """Put back entries whose removal was refused, unless their client was dropped meanwhile."""
        for key, entry in popped:
            if entry is None:
                continue
            msg_id = bytes(key)  # a memoryview finds an entry, too
            if not isinstance(entry[1], dict):
                if entry[1] not in self._dropped or self._is_kept(msg_id):
                    self._insert(msg_id, entry)
            elif msg_id in self.shared:
                self._insert_shared(msg_id, self.shared[msg_id])

    def _is_kept(self, msg_id: bytes) -> bool:
        """Return True if the index has an id, or cannot say that: a reference too many is better than one that is lost."""
        try:
            return self._is_indexed(msg_id)
        except OSError:
            return True

    def drop_client(self, client: int) -> None:
        """Drop the messages that only this client has written, unless the index has the id. Raises OSError of the index."""
        own = [(msg_id, entry) for msg_id, entry in list(self.pending.items()) if entry[1] == client]
        shared_ids = [msg_id for msg_id, shared in self.shared.items() if client in shared[1]]
        indexed = set(filter(self._is_indexed, (*(msg_id for msg_id, _ in own), *shared_ids)))  # first: it may fail
        for msg_id, entry in own:
            if msg_id not in indexed:
                popped = self.pending.pop(msg_id, None)
                if popped is not None and popped is not entry:  # removed and written again meanwhile
                    self._insert(msg_id, popped)
        for msg_id in shared_ids:  # second: inserting it takes over an entry in ``pending``
            if msg_id not in indexed and (shared := self.shared.get(msg_id)) and client in shared[1]:
                del shared[1][client]
                self._update_shared(msg_id, shared)
        self._dropped.append(client)

    def has_messages_of(self, client: int) -> bool:
        """Return True if a client has written one of the messages. Needs no lock."""
        return any(client in _owners(entry) for entry in (*list(self.pending.values()), *list(self.shared.values())))

    def ids(self) -> list[bytes]:
        """Return the ids of all messages, in the order of ``pending``."""
        ids = list(self.pending)
        return ids + [msg_id for msg_id in self.shared if msg_id not in self.pending] if self.shared else ids

    def oldest(self, count: int) -> list[bytes]:
        """Return the first ids of ``pending``, up to ``count``. Needs no lock."""
        while True:
            try:
                return list(islice(self.pending, count))
            except RuntimeError:  # a writer has changed the dictionary, which happens without the interpreter lock
                continue

    def peek(self, ids: Sequence[bytes]) -> list[BufferedMessage | None]:
        """Return the entry of each id, or None if it was removed."""
        found = list(map(self.pending.get, ids))
        if self.shared and not all(found):
            return [entry or self.shared.get(msg_id) for msg_id, entry in zip(ids, found, strict=True)]
        return found

    def pop(self, ids: Sequence[bytes]) -> list[BufferedMessage | None]:
        """Take the entries out, for the index; None for each id that was removed."""
        found = list(map(self.pending.pop, ids, repeat(None)))
        return list(map(self._pop_shared, ids, found)) if self.shared else found

    def reinsert(self, popped: Iterable[Popped]) -> None:
        """Put back entries that were popped and have to be written again."""
        for msg_id, entry in popped:
            if entry is None:
                continue
            if entry[1].__class__ is dict:
                shared = self.shared[msg_id] = entry[0], _owners(entry)
                self._insert_shared(msg_id, shared)
            else:
                self._insert(msg_id, entry)

    def count(self) -> None:
        """Count the bytes of all messages, OVERHEAD included. Takes time linear in the number of messages."""
        bodies = [body for body, _ in list(self.pending.values())]
        self.estimated_bytes = sum(map(len, bodies)) + OVERHEAD * len(bodies)
        self.mean_charge = self.estimated_bytes / max(len(bodies), 1)

    def clear(self) -> None:
        """Drop everything."""
        self.pending.clear()
        self.shared.clear()

    # -- entries that change hands ----------------------------------------------------------------------------------------

    def _insert(self, msg_id: bytes, entry: BufferedMessage) -> None:
        """Insert an entry with one reference; add to the one that a writer has inserted meanwhile."""
        if self.pending.setdefault(msg_id, entry) is not entry:
            for client, count in _owners(entry).items():
                for _ in range(count):
                    self.add(msg_id, entry[0], client)

    def _insert_shared(self, msg_id: bytes, entry: tuple[bytes, dict[int, int]]) -> None:
        """Insert a shared entry into ``pending``; take over what a writer has inserted meanwhile."""
        while self.pending.setdefault(msg_id, entry) is not entry:
            other = self.pending.pop(msg_id, None)
            if other is not None:
                _merge(entry[1], other)

    def _update_shared(self, msg_id: bytes, entry: tuple[bytes, dict[int, int]]) -> None:
        """After a change of its owners: have a shared entry in ``pending``, or drop it if nobody owns it."""
        if entry[1]:
            self._insert_shared(msg_id, entry)
        else:
            del self.shared[msg_id]
            last = self.pending.pop(msg_id, None)
            if last is not None and last is not entry:  # written again while the shared entry was popped
                self._insert(msg_id, last)

    def _pop_shared(self, msg_id: bytes, entry: BufferedMessage | None) -> BufferedMessage | None:
        shared = self.shared.pop(msg_id, None)
        if shared is not None and entry is not None and entry is not shared:  # written again while a remover held it
            _merge(shared[1], entry)
        return shared or entry


def count_references(entry: BufferedMessage) -> int:
    owners = entry[1]
    return sum(owners.values()) if isinstance(owners, dict) else 1


def _owners(entry: BufferedMessage) -> dict[int, int]:
    """Return references by client; of a shared entry its own dictionary."""
    owners = entry[1]
    return owners if isinstance(owners, dict) else {owners: 1}


def _merge(owners: dict[int, int], entry: BufferedMessage) -> None:
    for client, count in _owners(entry).items():
        owners[client] = owners.get(client, 0) + count


def _transfer(owners: dict[int, int], client: int, to: int | None) -> None:
    """Turn one reference of a client into one of another client, or drop it."""
    owners[client] -= 1
    if not owners[client]:
        del owners[client]
    if to is not None:
        owners[to] = owners.get(to, 0) + 1
