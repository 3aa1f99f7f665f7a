"""Messages of a queue for a person or a program: taken and acknowledged, or only looked at."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import attrs

from msgstore_queues.contract import Message
from msgstore_queues.message import Received
from msgstore_queues.queue import Queue

_HEX_BYTES = 256
"""Bytes that are shown of a body that is no text."""


@attrs.frozen
class TakenMessage:
    """A message to be shown."""

    queue: str
    received: Received
    is_acked: bool
    """True if it will be acknowledged when it was shown."""

    def as_json(self) -> dict[str, Any]:
        received, message = self.received, self.received.message
        return {
            "kind": "message", "queue": self.queue, "position": received.position, "id": message.msg_id.hex(),
            "size": len(message.body), "body": b64encode(message.body).decode(), "properties": dict(received.properties),
            "headers": dict(received.headers), "persistent": message.is_persistent,
            "redelivered": received.is_redelivered if self.is_acked else None,
            "attempts": received.attempts if self.is_acked else None,
            "expiry_ms": message.expiry_us // 1000 or None, "acked": self.is_acked,
        }  # fmt: skip

    def preview(self) -> str:
        """Return the body: text, or the first bytes as hexadecimal digits."""
        body = self.received.body
        try:
            return body.decode()
        except UnicodeDecodeError:
            return body[:_HEX_BYTES].hex(" ") + (" ..." if len(body) > _HEX_BYTES else "")


def facts_of(message: TakenMessage) -> Iterator[tuple[str, str]]:
    """Yield names and values of what a message has beside its body."""
    received = message.received
    yield "bytes", f"{len(received.body):,}"
    if message.is_acked and (received.is_redelivered or received.attempts > 1):
        yield "delivery", f"{received.attempts:,}{', may have been delivered before' if received.is_redelivered else ''}"
    if received.message.expiry_us:
        yield "expires", datetime.fromtimestamp(received.message.expiry_us / 1e6, UTC).isoformat(timespec="seconds")
    if not received.message.is_persistent:
        yield "transient", "yes"
    for name, value in {**received.properties, **received.headers}.items():
        yield name, str(value)


def take(queue: Queue, count: int) -> Iterator[TakenMessage]:
    """Take up to ``count`` messages. Each is acknowledged when the next one is asked for."""
    for received in islice(iter(queue.take, None), count):
        assert received is not None
        yield TakenMessage(queue.name, received, is_acked=True)
        received.ack()


def browse(queue: Queue, count: int) -> list[TakenMessage]:
    """Return the first ``count`` messages, which stay as they are."""
    found: list[TakenMessage] = []

    def add(position: int, message: Message) -> bool:
        received = Received(queue, position, message, is_redelivered=False)  # a queue says so when it delivers the message
        found.append(TakenMessage(queue.name, received, is_acked=False))
        return len(found) >= count

    with queue.lock:
        queue.backing.fold(add)
    return found
