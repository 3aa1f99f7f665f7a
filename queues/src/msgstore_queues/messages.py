"""Messages as terms: each is stored as RabbitMQ 3.10 stores it, so that its tools and the rescue of a dead broker read it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from msgstore_queues.contract import Message
from rabbitmq_files.messages import MessageError, StoredMessage, encode_behind, encode_head, read_message, split_tail
from rabbitmq_files.properties import encode_properties

_MAX_HEADS = 1000
"""Heads of terms that are remembered. Most messages of a queue have one of a few."""


def make_id() -> Callable[[], bytes]:
    """Return a function that returns 16 bytes, other ones each time: a random prefix of this call, and a number."""
    prefix, numbers = os.urandom(8), itertools.count(1)
    return lambda: prefix + next(numbers).to_bytes(8, "big")


class Terms:
    """Encodes and decodes the messages of a vhost. Any thread may call it."""

    def __init__(self, vhost: bytes) -> None:
        self._vhost = vhost
        self._heads: dict[tuple[bytes, tuple[bytes, ...], bytes], bytes] = {}
        self._last_head: tuple[object, object, object, bytes] = (None, None, None, b"")
        """Routing keys, properties and exchange of the last message that was encoded, and its head: most have the same."""
        self._last: tuple[bytes, Message] = (b"\0", Message(msg_id=b"", body=b""))
        """Head of the last term that was decoded, and its message."""

    def encode(self, message: Message) -> bytes:
        keys, raw = message.routing_keys, message.raw_properties
        last_keys, last_raw, last_exchange, head = self._last_head
        if keys is not last_keys or raw is not last_raw or message.exchange is not last_exchange:
            head = self.head(message)
            self._last_head = keys, raw, message.exchange, head
        return encode_behind(head, message.body, message.msg_id, message.is_persistent)

    def head(self, message: Message) -> bytes:
        """Return what comes before the body."""
        key = message.exchange, message.routing_keys, message.raw_properties
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[key] = encode_head(self._vhost, *key)
        return head

    def decode(self, term: bytes, expiry_us: int = 0) -> Message:
        """Return a message. Raises MessageError for a term that is none."""
        head, like = self._last
        if term.startswith(head) and (found := split_tail(term, len(head))) is not None:
            body, msg_id, is_persistent = found
            return Message(msg_id, body, is_persistent, expiry_us, like.exchange, like.routing_keys, like.raw_properties)
        stored, _ = read_message(term)
        message = _from_stored(stored, expiry_us)
        self._last = encode_head(self._vhost, message.exchange, message.routing_keys, message.raw_properties), message
        return message


def _from_stored(stored: StoredMessage, expiry_us: int) -> Message:
    if stored.msg_id is None:
        raise MessageError("has no id")
    raw = stored.raw_properties
    if raw is None:  # not of AMQP 0-9-1
        raw = encode_properties(stored.properties, stored.headers)
    keys = tuple(stored.routing_keys)
    return Message(stored.msg_id, stored.body, stored.is_persistent, expiry_us, stored.exchange, keys, raw)
