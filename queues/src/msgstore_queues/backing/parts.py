"""The contents of a variable queue's parts: messages whose positions are in memory, a range of positions, and bodies."""

from __future__ import annotations

import os

import attrs

from msgstore_queues.contract import Message, NewEntries
from msgstore_queues.messages import Terms
from rabbitmq_files.messages import encode_all_behind


@attrs.define(eq=False)
class Held:
    """A message whose position is in memory. The first fields are those of :class:`~msgstore_queues.contract.Entry`."""

    position: int
    is_persistent: bool
    msg_id: bytes
    body_size: int
    expiry_us: int
    is_shared: bool = False
    message: Message | None = None
    """None: a gamma."""
    is_stored: bool = False
    """The message store has it, or has been told."""
    is_indexed: bool = False
    """The index has an entry for it."""
    is_redelivered: bool = False


@attrs.define
class Delta:
    """Messages of which nothing is in memory: ``count`` of those from ``start`` to below ``stop``."""

    start: int
    stop: int
    count: int


class BodyRun:
    """The end of q1: persistent messages without properties, of which memory has only the bodies. An object for each would cost
    more than all else that a publish does. Their positions have no gaps, and their ids are made of them."""

    def __init__(self, start: int, routing_key: bytes, terms: Terms) -> None:
        self.bodies: list[bytes] = []
        self.start = start
        """Position of the first body, or of the next message."""
        self.indexed = start
        """The index has entries for positions below this one, or gets them in the flush under way."""
        self._routing_keys = (routing_key,)
        self._prefix = os.urandom(8)
        self._head = terms.head(Message(b"", b"", True, 0, b"", self._routing_keys))

    @property
    def next(self) -> int:
        """The position of the next message."""
        return self.start + len(self.bodies)

    def begin_at(self, position: int) -> None:
        """The next message has this position, and there is none now."""
        self.start = self.indexed = position

    def drop(self, count: int) -> int:
        """Forget the first bodies. Return their bytes."""
        size = sum(map(len, self.bodies[:count]))
        del self.bodies[:count]
        self.start += count
        self.indexed = max(self.indexed, self.start)
        return size

    def held(self, first: int = 0, stop: int | None = None) -> list[Held]:
        """Return messages by their numbers, counted from 0."""
        made, prefix, keys, indexed = list[Held](), self._prefix, self._routing_keys, self.indexed
        for position, body in enumerate(self.bodies[first:stop], self.start + first):
            msg_id = prefix + position.to_bytes(8, "big")
            message = Message(msg_id, body, True, 0, b"", keys)
            made.append(Held(position, True, msg_id, len(body), 0, False, message, False, position < indexed))
        return made

    def choose(self, stop: int, most: int) -> NewEntries:
        """Return entries of the first messages below ``stop`` that the index does not have, and take them for indexed. There
        is at least one."""
        first = self.indexed
        stop = min(stop, first + most)
        bodies, positions = self.bodies[first - self.start : stop - self.start], range(first, stop)
        ids = [self._prefix + position.to_bytes(8, "big") for position in positions]
        terms = encode_all_behind(self._head, bodies, ids)
        self.indexed = stop
        count = stop - first
        return NewEntries(positions, [True] * count, ids, list(map(len, bodies)), [0] * count, terms)
