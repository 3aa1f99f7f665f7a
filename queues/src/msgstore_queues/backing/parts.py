"""The contents of a variable queue's parts: messages whose positions are in memory, a range of positions, and bodies."""

from __future__ import annotations

import os

import attrs

from msgstore_queues.contract import Entry, Message
from msgstore_queues.messages import Terms
from rabbitmq_files.messages import encode_behind


@attrs.define(eq=False)
class Held(Entry):
    """A message whose position is in memory. It has a ``term`` only while the index writes it."""

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
        self._head = terms.head(self._message(start, b""))

    def begin_at(self, position: int) -> None:
        """The next message has this position, and there is none now."""
        self.start = self.indexed = position

    def drop(self, count: int) -> None:
        """Forget the first bodies."""
        del self.bodies[:count]
        self.start += count
        self.indexed = max(self.indexed, self.start)

    def held(self, first: int = 0, stop: int | None = None) -> list[Held]:
        """Return messages by their numbers, counted from 0."""
        made = []
        for position, body in enumerate(self.bodies[first:stop], self.start + first):
            message = self._message(position, body)
            is_indexed = position < self.indexed
            made.append(Held(position, True, message.msg_id, len(body), 0, None, False, message, False, is_indexed))
        return made

    def choose(self, stop: int, most: int) -> list[Entry]:
        """Return entries of the first messages below ``stop`` that the index does not have, and take them for indexed."""
        first, entries = self.indexed, list[Entry]()
        stop = min(stop, first + most, self.start + len(self.bodies))
        if stop <= first:  # also if all bodies are newer than the flush
            return []
        head, prefix = self._head, self._prefix
        for position, body in enumerate(self.bodies[first - self.start : stop - self.start], first):
            msg_id = prefix + position.to_bytes(8, "big")
            entries.append(Entry(position, True, msg_id, len(body), 0, encode_behind(head, body, msg_id, True)))
        self.indexed = stop
        return entries

    def _message(self, position: int, body: bytes) -> Message:
        return Message(self._prefix + position.to_bytes(8, "big"), body, True, 0, b"", self._routing_keys)
