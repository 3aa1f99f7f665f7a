"""Messages as consumers get them, and as publishers make them."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import attrs

from msgstore_queues.contract import Message
from msgstore_queues.options import Items, QueueOptions
from rabbitmq_files.properties import PropertiesError, add_headers, encode_properties, read_properties

NO_PROPERTIES = b"\0\0"
ATTEMPTS = "x-delivery-count"
"""Header: how often the message was delivered and came back with ``nack``."""
MAX_TIME_US = 2**52
"""Times in queue indexes are below: in the year 2112. Index v1 takes a later one for damage."""
DEATHS = "x-death"
"""Header: where the message was dead-lettered, as RabbitMQ writes it, the last one first."""


class TakenFrom(Protocol):
    """The queue of a message, as :class:`Received` uses it."""

    options: QueueOptions

    def acknowledge(self, messages: Sequence[Received]) -> None: ...

    def nack(self, *messages: Received, requeue: bool = True, delay: float | None = None) -> None: ...

    def returns(self, position: int) -> int: ...


@attrs.define(eq=False)
class Received:
    """A message that was taken from a queue, until it is acknowledged. Any thread may acknowledge it."""

    queue: TakenFrom
    position: int
    message: Message
    is_redelivered: bool
    """True if it may have been delivered before."""
    generation: int = 0
    """That of the queue. A message of an earlier one is not acknowledged: it is ready again."""
    _properties: tuple[dict[str, Any], dict[str, Any] | None] | None = None

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def item(self) -> Any:
        """The body as ``put`` took it. Raises what the codec raises for a body that it did not write."""
        return decode_item(self.queue.options.items, self.message.body)

    @property
    def headers(self) -> Mapping[str, Any]:
        return self._read()[1] or {}

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties of AMQP 0-9-1 by name, such as ``content_type``, without the headers."""
        return self._read()[0]

    @property
    def attempts(self) -> int:
        """Deliveries of the message, this one included, that are known: each ``nack`` counts one."""
        return whole_header(self.message, ATTEMPTS) + self.queue.returns(self.position) + 1

    def ack(self) -> None:
        """Say that the message is done with. It is gone when the next flush has written that; before, a crash delivers it
        again. A second call does nothing."""
        self.queue.acknowledge((self,))

    def nack(self, *, requeue: bool = True, delay: float | None = None) -> None:
        """Give the message back: to its place in the queue, or after ``delay`` seconds (by default the ``retry_delay`` of the
        queue) to its end. Without ``requeue``, or after ``max_attempts``, it is dead-lettered, or dropped."""
        self.queue.nack(self, requeue=requeue, delay=delay)

    def _read(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        if self._properties is None:
            self._properties = read_properties(self.message.raw_properties)
        return self._properties


def time_us(seconds: float, name: str) -> int:
    """Return the time that is ``seconds`` from now, in microseconds since the epoch. Raises ValueError for one that no index
    has, naming the argument ``name``."""
    at = (time.time() + seconds) * 1e6
    if not 0 <= at < MAX_TIME_US:
        raise ValueError(f"{name} is {seconds} seconds: the time must be after 1970, and before 2112")
    return int(at)


def whole_header(message: Message, name: str) -> int:
    """Return the value of a header that is a number of this package; 0 if others have written anything else."""
    try:
        value = (read_properties(message.raw_properties)[1] or {}).get(name)
    except PropertiesError:
        return 0
    return value if type(value) is int and 0 <= value < MAX_TIME_US else 0


def with_headers(message: Message, msg_id: bytes, headers: Mapping[str, Any], *, expiry_us: int) -> Message:
    """Return a copy of a message with another id, and with these headers added or replaced. Others keep their bytes. To
    properties that cannot be read nothing is added."""
    added = [encode_properties({}, {name: value})[6:] for name, value in headers.items()]  # behind flags and size
    raw = message.raw_properties
    with suppress(PropertiesError):
        raw = add_headers(raw, added)
    return attrs.evolve(message, msg_id=msg_id, raw_properties=raw, expiry_us=expiry_us)


def death(message: Message, queue: str, reason: str) -> dict[str, Any]:
    """Return the header of a dead letter: one more entry before those that the message has."""
    earlier = None
    with suppress(PropertiesError):
        earlier = (read_properties(message.raw_properties)[1] or {}).get(DEATHS)
    one = {
        "count": 1, "reason": reason, "queue": queue, "time": {"$timestamp": int(time.time())},
        "exchange": message.exchange.decode("utf-8", "replace"),
        "routing-keys": [key.decode("utf-8", "replace") for key in message.routing_keys],
    }  # fmt: skip
    return {DEATHS: [one, *(earlier if isinstance(earlier, list) else [])]}


def encode_item(items: Items, item: Any) -> bytes:
    """Return the body of an item. Raises TypeError for one that the codec does not take."""
    if items == "json":
        return json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    if items == "pickle":
        return pickle.dumps(item)
    if not isinstance(item, bytes | bytearray | memoryview):
        raise TypeError(f"an item is bytes, not {type(item).__name__}; items = 'json' takes what JSON has")
    return bytes(item)


def decode_item(items: Items, body: bytes) -> Any:
    if items == "json":
        return json.loads(body)
    return pickle.loads(body) if items == "pickle" else body
