"""From a message to its record in a commit log: a stored record gets another place, another message gets a new record."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs

from msgstore.contract import MessageBatch
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.frame import Frame, read_frame
from msgstore_rocketmq_log.inner_batch import BodyError, inflate
from msgstore_rocketmq_log.log import OWN_TOPICS, LogRecord, read_record
from msgstore_rocketmq_log.reflow import V2, NotDeliverableError, to_v1, to_v2

Places = Callable[[str, int], tuple[int, int]]
"""Topic and queue id to the place of the next message there: offset in the log, and number in the queue."""
_MAX_TIME = 2**63
_KEPT = (
    "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "born_port", "store_timestamp", "store_host", "store_port",
    "reconsume_times", "prepared_transaction_offset", "magic",
)  # fmt: skip
_ENDED = {
    "expired": "it has expired, and RocketMQ has no expiry: it would be delivered. Leave it out with --state ready",
    "consumed": "it was consumed, and would be delivered again. Leave it out, or convert without --group",
    "rolled_back": "its transaction was rolled back, and it would be delivered. Leave it out",
}


@attrs.frozen
class MadeRecord:
    """A record for a place in the log."""

    data: bytes = attrs.field(repr=False)
    topic: str
    queue_id: int
    incarnation: int = 0


def make_record(batch: MessageBatch, row: int, topic: str, places: Places, accepts: Collection[str], now_ms: int) -> MadeRecord:
    """Return the record of a message for its place. ``topic`` is that of its queue in the new log. With the layout ``v2`` in
    ``accepts``, all records are of it. Raises ValueError for a message that has no such record."""
    if (reason := _ENDED.get(batch.states[row])) is not None:
        raise ValueError(reason)
    if (stored := _stored(batch, row)) is None:
        made = _new(batch, row, topic, places, now_ms)
    elif (frame := stored[0].frame) is None:
        made = _moved(*stored, topic, places)
    elif V2 in accepts:
        return _moved_frame(stored[0], frame, topic, places)
    else:
        try:
            made = _moved(stored[0], to_v1(frame, accepts), topic, places)
        except NotDeliverableError as error:
            raise ValueError(f"its record has no form of v1: {error}") from None
    return attrs.evolve(made, data=to_v2(made.data).encode()) if V2 in accepts else made


def _stored(batch: MessageBatch, row: int) -> tuple[LogRecord, bytes] | None:
    """Return the record that RocketMQ wrote, or this plugin, if it is there and has the message's body."""
    raw = batch.raws[row] if batch.raws is not None and batch.name.system == "rocketmq" else None
    if raw is None:
        return None
    frame = read_frame(raw)
    if isinstance(frame, Frame):
        place = frame.physical_offset
    elif (verdict := v1.check(raw))["size"] == len(raw) and verdict["success"]:
        place = v1.read_fields(raw).physical_offset
    else:
        return None
    record = read_record(raw, 0, place)
    if not isinstance(record, LogRecord) or record.size != len(raw) or record.sys_flag & v1.INNER_BATCH:
        return None
    try:
        return (record, raw) if inflate(record, len(batch.bodies[row])) == batch.bodies[row] else None
    except BodyError:
        return None


def _moved(record: LogRecord, raw: bytes, wanted: str, places: Places) -> MadeRecord:
    """Return a v1 record with all its fields, but its topic and place."""
    topic = _topic_of(record, wanted)
    offset, number = places(topic, record.queue_id)
    fields = v1.read_fields(raw)
    kept: dict[str, Any] = {name: getattr(fields, name) for name in _KEPT}
    data = v1.encode(
        body=raw[fields.body : fields.body_end], topic=topic.encode(), properties=raw[fields.properties : fields.end],
        physical_offset=offset, queue_offset=number, **kept,
    )  # fmt: skip
    if data[-p.CRC_BYTES :].startswith(p.CRC_NAME.encode()):
        data = data[: -p.CRC_BYTES] + v1.crc_property(data[: -p.CRC_BYTES])
    return MadeRecord(data, topic, record.queue_id)


def _moved_frame(record: LogRecord, frame: Frame, wanted: str, places: Places) -> MadeRecord:
    """Return a v2 record with its header as it is: it may have fields that this version does not know."""
    if _topic_of(record, wanted) != record.topic:
        raise ValueError("the name of its topic is in a header of the v2 layout, which is not changed: do not rename the queue")
    offset, number = places(record.topic, record.queue_id)
    moved = attrs.evolve(frame, physical_offset=offset, queue_offset=number)
    return MadeRecord(moved.encode(), record.topic, record.queue_id, record.incarnation)


def _topic_of(record: LogRecord, wanted: str) -> str:
    """Return the topic for a record: that of its queue, or the broker's own one in which it waits. Raises ValueError."""
    if record.topic not in OWN_TOPICS:
        return wanted
    if record.properties().get(p.REAL_TOPIC, record.topic) != wanted:
        raise ValueError(f"a message in the broker's own topic {record.topic} cannot be renamed")
    return record.topic


def _new(batch: MessageBatch, row: int, topic: str, places: Places, now_ms: int) -> MadeRecord:
    if batch.states[row] in ("delayed", "half"):
        raise ValueError(f"a message that is {batch.states[row]} needs its record: convert with --raw")
    when = batch.timestamps_ms[row] if batch.timestamps_ms is not None else None
    when = now_ms if when is None else when
    if not 0 <= when < _MAX_TIME:
        raise ValueError("its time is no number of milliseconds")
    queue_id = batch.name.partition or 0
    offset, number = places(topic, queue_id)
    data = v1.encode(
        body=batch.bodies[row], topic=topic.encode(), properties=_properties(batch, row), queue_id=queue_id,
        born_timestamp=when, store_timestamp=when, physical_offset=offset, queue_offset=number,
    )  # fmt: skip
    return MadeRecord(data, topic, queue_id)


def _properties(batch: MessageBatch, row: int) -> bytes:
    """Return the properties of a message. Raises ValueError for one that has no form there."""
    stored = batch.raw_properties[row] if batch.raw_properties is not None else None
    if batch.name.system == "rocketmq" and stored is not None:
        return stored
    own = batch.name.system == "rocketmq"
    pairs: list[tuple[str, str]] = []
    for column, prefix in ((batch.properties, "" if own else f"{batch.name.system}."), (batch.headers, "")):
        for name, value in ((column[row] if column is not None else None) or {}).items():
            if value is None:
                continue
            if not isinstance(value, str | int | float):
                raise ValueError(f"the property {name!r} is {type(value).__name__}, and only text can be one")  # noqa: TRY004 - one class
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if not name or not text or p.VALUE_END in f"{name}{text}" or p.NAME_END in name:
                raise ValueError(f"the property {name!r} is empty, or has a separator")
            if not own and prefix + name in p.SYSTEM:
                raise ValueError(f"the header {name!r} has the name of a system property")
            pairs.append((prefix + name, text))
    return p.encode(pairs).encode()
