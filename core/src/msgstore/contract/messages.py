"""Messages of any system: what sources yield and sinks take, as batches of columns.

A column is a sequence with one value for each message, or None if no message of the batch has a value. Plain lists are fast: a
message costs a few list entries instead of an object.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs.validators import in_

LISTED = ("ready", "reserved", "delayed", "committed", "expired")
"""States of messages that a restart of the broker would deliver, and ``expired``. Tools list these by default."""
UNLISTED = ("half", "rolled_back", "consumed", "transient", "orphan")
"""States of other messages. ``transient``: a restart drops it. ``orphan``: it is stored, and in no queue."""
STATES = LISTED + UNLISTED
"""All states."""
CERTAIN, MAYBE_CONSUMED, MAYBE_DUPLICATE = CERTAINTIES = ("certain", "maybe_consumed", "maybe_duplicate")


@attrs.frozen
class QueueName:
    """Name of a queue, by keywords or positions. What a system does not have is None."""

    system: str
    """``msgstore``, ``kestrel``, ``rocketmq``, ``rabbitmq``, or that of a third party."""
    vhost: str | None = None
    queue: str | None = None
    """RocketMQ: the topic."""
    partition: int | None = None
    """RocketMQ: the queue id. A signed number of 32 bits."""

    def __str__(self) -> str:
        queue = "/".join(str(part) for part in (self.queue, self.partition) if part is not None)
        vhost = None if self.vhost is None else f"vhost {self.vhost}"
        return f"{queue} in {vhost}" if queue and vhost else queue or vhost or self.system


@attrs.frozen(kw_only=True)
class QueueInfo:
    """One queue of a source, or one part of its directory that the source recognises and does not read. Keywords only."""

    name: QueueName
    type: str = ""
    """Word of the system, such as ``classic``, ``quorum``, ``topic``."""
    read: bool = True
    reason: str = ""
    """Reason for which it is not read, and what to do instead."""
    details: Mapping[str, Any] = attrs.field(factory=dict)
    """Numbers and names of this system: JSON values."""


@attrs.define(kw_only=True)
class MessageBatch:
    """Messages of one queue in the order of delivery. Keywords only. Numbers are signed, of 64 bits. Columns of different
    lengths, values of other types, other numbers, unknown states, and positions that do not grow or were not asked for are an
    error that names the source. The conformance kit checks the places."""

    name: QueueName
    bodies: Sequence[bytes]
    """As the producer sent them: inflated."""
    positions: Sequence[int]
    """0, 1, 2 ... in the queue, over all states. A position that cannot be read is left out."""
    states: Sequence[str]
    files: Sequence[str]
    """Path of the file of each record, relative to the source's path; "" is that path itself."""
    offsets: Sequence[int]
    sizes: Sequence[int]
    """Offset and bytes of the record: at least one, inside its file, none of another record. Messages of one record have the
    same place. In a file of rows: the number of the row, and 1. A message that comes with an origin, as in a file of the sink
    ``jsonl``, keeps that."""
    sequences: Sequence[int | None] | None = None
    """The system's own numbers."""
    ids: Sequence[str | None] | None = None
    raws: Sequence[bytes | None] | None = None
    """The records as stored, or reflowed. Only if :attr:`SourceContext.raw` asks for them."""
    refusals: Sequence[str | None] | None = None
    """Reason for which a record has no form that the reader takes. The message is never altered: it is refused."""
    exchanges: Sequence[str | None] | None = None
    routing_keys: Sequence[Sequence[str] | None] | None = None
    properties: Sequence[Mapping[str, Any] | None] | None = None
    """JSON values. See :func:`json_value` for what JSON cannot say."""
    headers: Sequence[Mapping[str, Any] | None] | None = None
    """As properties. An empty mapping and None are the same: none."""
    raw_properties: Sequence[bytes | None] | None = None
    timestamps_ms: Sequence[int | None] | None = None
    """Times of the messages, in milliseconds since the epoch."""
    expiries_ms: Sequence[int | None] | None = None
    """Times at which they expire, in milliseconds since the epoch."""
    certainties: Sequence[str] | None = None
    """``certain``, ``maybe_consumed`` or ``maybe_duplicate``: ``CERTAINTIES``. None: all are ``certain``."""
    verified: Sequence[bool | None] | None = None
    """True if a checksum was compared. One that differs is damage, not a message."""

    def __len__(self) -> int:
        return len(self.bodies)

    def take(self, rows: Sequence[int]) -> MessageBatch:
        """Return the messages with these numbers in the batch."""
        chosen: dict[str, Any] = {
            field.name: [column[row] for row in rows]
            for field in attrs.fields(MessageBatch)
            if field.name != "name" and (column := getattr(self, field.name)) is not None
        }
        return attrs.evolve(self, **chosen)


@attrs.frozen(kw_only=True)
class SourceDamage:
    """Bytes of a source that cannot be read, or a message that is lost. Keywords only."""

    file: str
    """A file that exists, relative to the source's path; "" is that path itself."""
    reason: str
    offset: int = 0
    size: int = 0
    name: QueueName | None = None
    """The queue whose messages it affects, if that is known."""
    messages: int = 0
    """Number of messages that are lost, as far as that is known."""


@attrs.frozen
class Candidate:
    """Answer of a source to the question whether it can read a path, by keywords or positions."""

    likelihood: str = attrs.field(validator=in_(("certain", "likely", "perhaps")))
    """``"certain"``, ``"likely"`` or ``"perhaps"``."""
    evidence: str
    """Names of files, magic numbers and the like, as text for people."""


def json_value(value: object) -> Any:
    """Return a property's value as JSON has it. Bytes become ``{"$bytes": base64}``, other types are objects of one member,
    too, which the caller makes. A float that is no number becomes ``{"$float": "nan"}``. Raises TypeError."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [json_value(inner) for inner in value]
    raise TypeError(f"a property is a {type(value).__name__}, which has no form in JSON")
