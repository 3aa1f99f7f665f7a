"""From a message to its record in a commit log: a stored record gets another place, another message gets a new record."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs

from msgstore.contract import MessageBatch
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.frame import Frame, make_frame, read_frame
from msgstore_rocketmq_log.inner_batch import BodyError, inflate
from msgstore_rocketmq_log.log import HALF_TOPIC, OP_TOPIC, OWN_TOPICS, WHEEL_TOPIC, LogRecord, read_record
from msgstore_rocketmq_log.reflow import RESERVED, V2, NotDeliverableError, has_unknown, to_v1, to_v2

Places = Callable[[str, int], tuple[int, int]]
"""Topic and queue id to the place of the next message there: offset in the log, and number in the queue."""
MAX_QUEUE_ID = 65_535
"""Java's limit is 2**31 - 1, but a broker has an object and a directory for each queue id up to a topic's largest."""
_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: an index file has a time as its name, with four digits for the year."""
_KEPT = (
    "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "born_port", "store_timestamp", "store_host", "store_port",
    "reconsume_times", "magic",
)  # fmt: skip
_WAITING = {v1.SCHEDULE_TOPIC: "delayed", WHEEL_TOPIC: "delayed", HALF_TOPIC: "half"}
"""Topic of the broker's own to the state of the messages that wait in it."""
_PREPARED_NUMBER = "TRAN_PREPARED_QUEUE_OFFSET"
"""Property with the number of a half message's first record, in the log where that is."""
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
    else:
        record, raw = stored
        try:
            if record.frame is not None and V2 not in accepts:
                raw = to_v1(record.frame, accepts)
                fields = v1.read_fields(raw)  # the properties may be others than those of the header
                record = attrs.evolve(record, frame=None, raw_properties=raw[fields.properties : fields.end])
        except NotDeliverableError as error:
            raise ValueError(f"its record has no form of v1: {error}") from None
        _check_place(record, batch, topic)
        if record.frame is not None:
            return _moved_frame(record, record.frame, topic, places)
        made = _moved(record, raw, topic, places)
    return attrs.evolve(made, data=to_v2(made.data).encode()) if V2 in accepts else made


def _stored(batch: MessageBatch, row: int) -> tuple[LogRecord, bytes] | None:
    """Return the record that RocketMQ wrote, or this plugin, if it is there, waits as the message does, and has its body."""
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
    if record.topic == OP_TOPIC or record.sys_flag & v1.TRANSACTION in (v1.PREPARED, v1.ROLLED_BACK):
        return None  # an op message ends half messages of another log; the flags are of brokers before 4.3
    waits, state = _WAITING.get(record.topic), batch.states[row]
    if waits != (state if state in _WAITING.values() else None) and (waits is None or state != "orphan"):
        return None
    try:
        return (record, raw) if inflate(record, len(batch.bodies[row])) == batch.bodies[row] else None
    except BodyError:
        return None


def _check_place(record: LogRecord, batch: MessageBatch, topic: str) -> None:
    """Raise ValueError for a record that does not belong where its message does, or that no broker has."""
    real = (topic, record.queue_id)
    if record.topic in OWN_TOPICS:
        real = p.real_queue(record.properties(), record.topic, record.queue_id)
    if real[0] != topic:
        raise ValueError(f"a message in the broker's own topic {record.topic} cannot be renamed")
    if real[1] != (batch.name.partition or 0) or not 0 <= record.queue_id <= MAX_QUEUE_ID:
        raise ValueError(f"its record is of the queue id {real[1]}, or waits in one that no broker has: leave it out")
    _check_time(record.store_timestamp)


def _check_time(when: int) -> None:
    if not 0 <= when <= _MAX_MS:
        raise ValueError(f"its time, {when} ms, is not between 1970 and 9999")


def _prepared_offset(record: LogRecord, offset: int) -> int:
    """Return the prepared transaction offset of a record that moves to ``offset``. Half records that were committed do not come
    along. A commit record points at itself: each at another place, and none at a half record."""
    return offset if record.sys_flag & v1.TRANSACTION == v1.COMMITTED else 0


def _encode(properties: bytes, **fields: Any) -> bytes:
    """Return a v1 record. A property with the checksum of the old record becomes one with that of the new record."""
    properties, has_crc = p.make_room(properties)
    data = v1.encode(properties=properties, **fields)
    return data[: -p.CRC_BYTES] + v1.crc_property(data[: -p.CRC_BYTES]) if has_crc else data


def _moved(record: LogRecord, raw: bytes, wanted: str, places: Places) -> MadeRecord:
    """Return a v1 record with all its fields, but its topic and the offsets."""
    topic = record.topic if record.topic in OWN_TOPICS else wanted
    offset, number = places(topic, record.queue_id)
    fields = v1.read_fields(raw)
    kept: dict[str, Any] = {name: getattr(fields, name) for name in _KEPT}
    properties = raw[fields.properties : fields.end]
    data = _encode(
        p.without(properties, _PREPARED_NUMBER) if topic == HALF_TOPIC else properties,
        body=raw[fields.body : fields.body_end], topic=topic.encode(), physical_offset=offset, queue_offset=number,
        prepared_transaction_offset=_prepared_offset(record, offset), **kept,
    )  # fmt: skip
    return MadeRecord(data, topic, record.queue_id)


def _moved_frame(record: LogRecord, frame: Frame, wanted: str, places: Places) -> MadeRecord:
    """Return a v2 record with its header as it is, if no offset is in it: it may have fields that are not known here."""
    if record.topic not in OWN_TOPICS and record.topic != wanted:
        raise ValueError("the name of its topic is in a header of the v2 layout, which is not changed: do not rename the queue")
    offset, number = places(record.topic, record.queue_id)
    moved = attrs.evolve(frame, physical_offset=offset, queue_offset=number)
    prepared = _prepared_offset(record, offset)
    if record.prepared_transaction_offset != prepared:
        if has_unknown(header := frame.header()):
            raise ValueError("an offset is in its header of the v2 layout, which has unknown fields and is not changed")
        header_bytes = make_frame(header | {"prepared_transaction_offset": prepared}, b"").header_bytes
        moved = attrs.evolve(moved, header_bytes=header_bytes)
    return MadeRecord(moved.encode(), record.topic, record.queue_id, record.incarnation)


def _new(batch: MessageBatch, row: int, topic: str, places: Places, now_ms: int) -> MadeRecord:
    if batch.states[row] in ("delayed", "half"):
        raise ValueError(
            f"a message that is {batch.states[row]} needs its record in the broker's own topic: convert with --raw"
        )
    when = batch.timestamps_ms[row] if batch.timestamps_ms is not None else None
    when = now_ms if when is None else when
    _check_time(when)
    queue_id = batch.name.partition or 0
    offset, number = places(topic, queue_id)
    data = _encode(
        _properties(batch, row), body=batch.bodies[row], topic=topic.encode(), queue_id=queue_id,
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
            if not own and prefix + name in RESERVED:
                raise ValueError(f"the header {name!r} has the name of a system property")
            pairs.append((prefix + name, text))
    return p.encode(pairs).encode()
