"""Backing queue ``variable``: it keeps its next and its last messages in memory, and those between on disk only."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import compress, islice
from typing import Any

from msgstore.contract import StoreIOError
from msgstore_queues.backing.five_parts import OVERHEAD, FiveParts, by_position
from msgstore_queues.backing.parts import Held
from msgstore_queues.contract import NO_ENTRIES, Delivery, Message, NewEntries

WRITE_TOGETHER = 256
"""Bodies that are written together: fewer objects at once than those after which Python's collector begins."""


class VariableQueue(FiveParts):
    """Implements :class:`msgstore_queues.contract.BackingQueue`."""

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    def publish(self, message: Message) -> int:
        held = self._accept(message)  # raises before the message is taken
        if not held.is_persistent and len(self._q1) + len(self._q4) >= self._target:
            self._note_unwritten(held)
        (self._q1 if self._q3 else self._q4).append(held)
        self._body_bytes += held.body_size
        return held.position

    def publish_body(self, body: bytes) -> None:
        self._bodies.bodies.append(body)
        self.unwritten += OVERHEAD + len(body)

    def publish_delivered(self, message: Message) -> Delivery:
        held = self._accept(message)
        self._unacked[held.position] = held
        self._next_delivered = held.position + 1
        return Delivery(held.position, message, False)

    def _accept(self, message: Message) -> Held:
        """Give a message a position. A persistent one waits for the next flush."""
        if self._bodies.bodies:
            self._unpack(len(self._bodies.bodies))
        position, size = self._bodies.next, len(message.body)
        is_persistent = message.is_persistent and self._is_durable
        is_shared = size + len(message.raw_properties) >= self._embed_below
        held = Held(position, is_persistent, message.msg_id, size, message.expiry_us, is_shared, message)
        if is_persistent:
            if is_shared:
                self._note_unwritten(held)
            else:  # as _note_unwritten does, for most messages
                self._unwritten[position] = held
                self.unwritten += OVERHEAD + size
        self._bodies.begin_at(position + 1)
        return held

    def fetch(self) -> Delivery | None:
        if not self._q4 and not self._load_front():
            return None
        held = self._q4.popleft()
        position, message = held.position, held.message
        assert message is not None
        self._unacked[position] = held
        self._body_bytes -= held.body_size
        if position >= self._next_delivered:
            self._next_delivered = position + 1
        return Delivery(position, message, held.is_redelivered)

    def peek(self) -> Message | None:
        if not self._q4 and not self._load_front():
            return None
        return self._q4[0].message

    def ack(self, positions: Iterable[int]) -> None:
        for position in positions:
            held = self._unacked.pop(position)
            if held.is_indexed or held.is_stored:
                self._forget(held)
            elif self._unwritten.pop(position, None) is not None:  # as _forget does, for most messages
                self.unwritten -= OVERHEAD + held.body_size

    def requeue(self, positions: Iterable[int]) -> None:
        returned = [self._unacked[position] for position in sorted(positions)]
        while returned and self._q3 and self._q3[0].position < returned[-1].position:
            self._load_front()  # what is before the last one enters q4, so that all of them fit in there
        for held in returned:
            del self._unacked[held.position]  # not earlier: what is read from delta is that which is not unacked
            held.is_redelivered = True
            self._body_bytes += held.body_size
        self._q4 = deque(merge(self._q4, returned, key=by_position))
        self._reduce()

    def purge(self) -> int:
        count = len(self)
        while self._delta.count:  # segment by segment, first: if one cannot be read, those behind it are ready
            front = len(self._q3)
            self._extend_q3()
            for held in (*self._q4, *islice(self._q3, front)):
                self._body_bytes -= held.body_size
                self._forget(held)
            self._q4.clear()
            for _ in range(front):
                self._q3.popleft()
        bodies = self._bodies
        self._acks += range(bodies.start, bodies.indexed)
        self.unwritten -= sum(OVERHEAD + len(body) for body in bodies.bodies[bodies.indexed - bodies.start :])
        bodies.drop(len(bodies.bodies))
        for part in (self._q4, self._q3, self._q2, self._q1):
            for held in part:
                self._forget(held)
            part.clear()
        self._body_bytes = 0
        return count

    def fold(self, call: Callable[[int, Message], object]) -> None:
        for held in self._q4:
            assert held.message is not None
            if call(held.position, held.message):
                return
        for chunk in self._chunks():
            for held, message in zip(chunk, self._messages(chunk), strict=True):
                if message is not None and call(held.position, message):
                    return

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        for position, held in sorted(self._unacked.items()):
            assert held.message is not None
            if call(position, held.message):
                return

    def shared(self) -> Iterator[bytes]:
        return self._index.shared()

    def begin_flush(self) -> None:
        self._until = self._bodies.next

    def write(self) -> None:
        if self._writing is not NO_ENTRIES:
            self._write_chosen()  # what a flush that failed has chosen: the index wants it again, first and alone
        if self._unwritten:
            self._writing = self._choose()
        if self._acks or self._writing is not NO_ENTRIES:
            self._write_chosen()
        while self._bodies.indexed < self._until:
            self._writing = self._bodies.choose(self._until, WRITE_TOGETHER)
            self._write_chosen()
        self._removable += self._removals
        self._removals = []
        self._reduce()

    def _write_chosen(self) -> None:
        entries = self._writing
        self._index.write(entries, self._acks)
        self.unwritten -= OVERHEAD * len(entries.positions) + sum(compress(entries.body_sizes, entries.terms))
        self._writing, self._acks = NO_ENTRIES, []

    def _choose(self) -> NewEntries:
        """Return what the flush writes, but for bodies: an acknowledgement of it goes to the index from now on."""
        positions = sorted(self._unwritten)
        del positions[bisect_left(positions, self._until) :]
        chosen, terms, encode = list(map(self._unwritten.pop, positions)), list[bytes | None](), self._terms.encode
        for held in chosen:
            assert held.message is not None
            terms.append(None if held.is_shared else encode(held.message))
            held.is_indexed = True
        are_persistent = [held.is_persistent for held in chosen]
        self._has_transient_entries |= not all(are_persistent)
        sizes, expiries = [held.body_size for held in chosen], [held.expiry_us for held in chosen]
        return NewEntries(positions, are_persistent, [held.msg_id for held in chosen], sizes, expiries, terms)

    def sync(self) -> Callable[[], None]:
        return self._index.sync()

    def end_flush(self) -> None:
        for is_persistent in (True, False):
            mine = [held for held in self._removable if held.is_persistent == is_persistent]
            if mine:
                self._removable = [held for held in self._removable if held.is_persistent != is_persistent]
                try:
                    self._stores[is_persistent].remove([held.msg_id for held in mine])
                except StoreIOError as error:  # no reference is removed twice: it may be that of another queue
                    left = set(error.ids)
                    self._removable += [held for held in mine if held.msg_id in left]
                    raise

    def terminate(self) -> Mapping[str, Any]:
        """Without terms of the index if it has entries of transient messages: the next opening reads it, and drops them."""
        terms = self._index.close()
        unacked = sum(held.body_size for held in self._unacked.values())
        transient = sum(held.body_size for held in (*self._q1, *self._q4, *self._unacked.values()) if not held.is_indexed)
        return {
            "next": self._bodies.next, "next_delivered": self._next_delivered,
            "body_bytes": self.body_bytes + unacked - transient,
            "index": None if self._has_transient_entries else terms,
        }  # fmt: skip

    def abandon(self) -> None:
        self._index.abandon()

    def delete_and_terminate(self) -> None:
        self.requeue(list(self._unacked))
        self.purge()
        self._index.delete()
        self._removable += self._removals
        self.end_flush()
