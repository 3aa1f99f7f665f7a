"""Records of the commit log, v1: fields, check, encoding. All integers are big-endian.

::

    total size 4, magic 4, body CRC 4, queue id 4, flag 4, queue offset 8, physical offset 8, sys flag 4, born time 8,
    born host (address 4 or 16, port 4), store time 8, store host, reconsume times 4, prepared transaction offset 8,
    body length 4 and body, topic length 1 (magic A7) or 2 (magic AB) and topic, length of the properties 2 and properties

Source: RocketMQ 4.9 to 5.3, ``MessageDecoder`` and the record check of ``CommitLog`` (docs/spec/rocketmq-log.md).
"""

from __future__ import annotations

import ipaddress
import mmap
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgstore_rocketmq_log import properties as p

MAGIC, LONG_TOPIC_MAGIC, BLANK_MAGIC, V2_MAGIC = 0xDAA320A7, 0xDAA320AB, 0xCBD43194, 0xDAA320AF
COMPRESSED, MULTI_TAGS, TRANSACTION, BORN_V6, STORE_V6, INNER_BATCH = 0x1, 0x2, 0xC, 0x10, 0x20, 0x80
PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC
"""Values of the transaction bits."""
CODEC_SHIFT, LZ4, ZSTD, ZLIB = 8, 1, 2, 3
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAYS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""Delay of the levels 1 to 18."""
MAX_TOPIC, MAX_LONG_TOPIC, MAX_PROPERTIES = 127, 32767, 32767
"""Bytes. The lengths are signed."""
SMALLEST = 91
"""Bytes of a record without body, topic and properties."""
MAX_INNER = 2**15 - 1
"""Messages in an inner batch: an entry of a consume queue counts them in two bytes."""
_SYS_FLAG_AT = 36

Buffer = bytes | memoryview | mmap.mmap
_HEADS = tuple(struct.Struct(f">iIIiiqqiq{born}siq{store}siiqi") for store in (4, 16) for born in (4, 16))
"""Everything up to the length of the body, by the two bits of the sys flag for addresses."""
PLAIN_HEAD = _HEADS[0]
"""Layout of the first fields of a record with two addresses of 4 bytes."""
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_MAGIC = struct.Struct(">I")
ENTRY = struct.Struct(">qiq")
"""Entry of a consume queue: physical offset, bytes of the record, tags code."""


class Fields(NamedTuple):
    """Fields of a record, in their order; body, topic and properties by their offsets."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    born_port: int
    store_timestamp: int
    store_host: bytes
    store_port: int
    reconsume_times: int
    prepared_transaction_offset: int
    body: int
    body_end: int
    topic: int
    topic_end: int
    properties: int
    end: int
    """Offset behind the record, as its lengths have it."""


class UnreadableError(Exception):
    """Raised for bytes that are no record."""


def read_fields(data: Buffer, at: int = 0) -> Fields:
    """Return the fields of the record at ``at``. Compares only what must be known to find the next field: magic and lengths.

    Raises UnreadableError.
    """
    limit = len(data)
    try:
        (sys_flag,) = _I32.unpack_from(data, at + _SYS_FLAG_AT)
        head = _HEADS[sys_flag >> 4 & 3]
        *fields, body_size = head.unpack_from(data, at)
        magic = fields[1]
        body = at + head.size
        body_end = body + max(body_size, 0)
        if magic == MAGIC:
            topic = body_end + 1
            topic_size = data[body_end]
            topic_size -= (topic_size & 0x80) << 1
        elif magic == LONG_TOPIC_MAGIC:
            topic = body_end + 2
            (topic_size,) = _I16.unpack_from(data, body_end)
        else:
            raise UnreadableError(f"the magic is 0x{magic:08X}")
        topic_end = topic + topic_size
        if topic_size < 0 or topic_end > limit:
            raise UnreadableError(f"a topic of {topic_size} bytes")
        (size,) = _I16.unpack_from(data, topic_end)
    except (struct.error, IndexError):
        raise UnreadableError("the record ends early") from None
    end = topic_end + 2 + max(size, 0)
    if end > limit:
        raise UnreadableError("the properties end early")
    return Fields._make((*fields, body, body_end, topic, topic_end, topic_end + 2, end))


def body_crc(body: Buffer) -> int:
    """Return the CRC of a body: 31 bits of CRC-32."""
    return zlib.crc32(body) & 0x7FFFFFFF


def text_of(data: Buffer, begin: int, end: int) -> str:
    """Return text, with a replacement character for what is no UTF-8."""
    return bytes(data[begin:end]).decode("utf-8", "replace")


def properties_of(data: Buffer, fields: Fields) -> dict[str, str]:
    """Return the properties of a record."""
    return p.parse(text_of(data, fields.properties, fields.end))


def is_property_crc_right(data: Buffer, at: int, fields: Fields, given: str) -> bool:
    """Return True if a record has the checksum that its property ``__CRC32#`` says: 10 digits, the lowest first."""
    if not (given.isascii() and given.isdigit()):
        return False
    return int(given[::-1]) == body_crc(data[at : at + fields.total_size - p.CRC_BYTES])


def crc_property(record: bytes) -> bytes:
    """Return the property that ends a record and has the checksum of what stands before it."""
    digits = f"{body_crc(record):010}"[::-1]
    return f"{p.CRC_NAME}{p.NAME_END}{digits}{p.VALUE_END}".encode()


def tags_code(topic: str, found: Mapping[str, str], store_timestamp: int) -> int:
    """Return the tags code of an entry of a consume queue: the hash of the tags, or the time of a delayed delivery."""
    if topic == SCHEDULE_TOPIC and (level := _level(found.get(p.DELAY))) > 0:
        return (store_timestamp + DELAYS_MS[level - 1] + 2**63) % 2**64 - 2**63  # as the broker's 64 bits have it
    tags = found.get(p.TAGS)
    return p.java_hash(tags) if tags else 0


def _level(text: str | None) -> int:
    try:
        return min(int(text or 0), len(DELAYS_MS))
    except ValueError:
        return 0


# -- as the real decoder and the real recovery have it ------------------------------------------------------------------------


def decode(data: bytes, check_crc: bool = False) -> dict[str, Any] | None:
    """Return the fields of a record as the broker's decoder reads them. None if it does not, or raises.

    ``check_crc``: the CRC of the body must be right. The body is as it is stored, in hexadecimal digits.
    """
    try:
        fields = read_fields(data)
    except UnreadableError:
        return None
    body = data[fields.body : fields.body_end]
    if check_crc and body and body_crc(body) != fields.body_crc:
        return None
    store_host, port = fields.store_host, fields.store_port
    host_and_offset = store_host + _I32.pack(port) + struct.pack(">q", fields.physical_offset)
    return {
        "total_size": fields.total_size,
        "magic": f"0x{fields.magic:08X}",
        "body_crc": fields.body_crc,
        "queue_id": fields.queue_id,
        "flag": fields.flag,
        "queue_offset": fields.queue_offset,
        "physical_offset": fields.physical_offset,
        "sys_flag": fields.sys_flag,
        "born_timestamp": fields.born_timestamp,
        "born_host": str(ipaddress.ip_address(fields.born_host)),
        "born_port": fields.born_port,
        "store_timestamp": fields.store_timestamp,
        "store_host": str(ipaddress.ip_address(store_host)),
        "store_port": port,
        "reconsume_times": fields.reconsume_times,
        "prepared_transaction_offset": fields.prepared_transaction_offset,
        "body": body.hex(),
        "topic": text_of(data, fields.topic, fields.topic_end),
        "properties": properties_of(data, fields),
        "offset_msg_id": host_and_offset.hex().upper(),
    }


def check(data: Buffer, at: int = 0) -> dict[str, Any]:
    """Return the verdict of the broker's recovery on the record at ``at``: ``success`` and ``size``, and for a good record what
    a consume queue and an index need.

    Success with size 0 is a blank: the next file follows. A size of -1 is unreadable. No success with another size is a record
    whose lengths do not add up. A property ``__CRC32#`` is compared where there is one, instead of the CRC of the body.
    """
    bad = {"success": False, "size": -1}
    if len(data) - at <= 4:
        return bad
    (total,) = _I32.unpack_from(data, at)
    if len(data) - at < total or len(data) - at < 8:
        return bad
    if _MAGIC.unpack_from(data, at + 4)[0] == BLANK_MAGIC:
        return {"success": True, "size": 0}
    try:
        fields = read_fields(data, at)
    except UnreadableError:
        return bad
    found = properties_of(data, fields)
    if (given := found.get(p.CRC_NAME)) is not None:
        if not is_property_crc_right(data, at, fields, given):
            return bad
    elif fields.body < fields.body_end and body_crc(data[fields.body : fields.body_end]) != fields.body_crc:
        return bad
    if fields.end - at != total:
        return {"success": False, "size": total}
    topic = text_of(data, fields.topic, fields.topic_end)
    return {
        "success": True,
        "size": total,
        "tags_code": tags_code(topic, found, fields.store_timestamp),
        "keys": found.get(p.KEYS) if fields.properties < fields.end else "",
        "uniq_key": found.get(p.UNIQ_KEY),
        "topic": topic,
        "cq_offset": fields.queue_offset,
        "phy": fields.physical_offset,
    }


def consume_queue_entry(data: bytes) -> bytes:
    """Return the entry of 20 bytes that the dispatch of a record writes. Raises ValueError if the record is not good."""
    found = check(data)
    if not found["success"] or not found["size"]:
        raise ValueError("the bytes are no good record of a commit log")
    return ENTRY.pack(found["phy"], found["size"], found["tags_code"])


def scan_file(data: Buffer, file_from_offset: int) -> dict[str, Any]:  # noqa: ARG001 - no rule of the broker uses it
    """Return what a recovery finds in one file of the commit log: its good records up to the first bad one, and why it ends.

    ``file_from_offset`` is the offset of the file in the log. The check does not compare it with the records.
    """
    at = 0
    found: list[dict[str, int]] = []
    while True:
        one = check(data, at)
        if not one["success"]:
            return {"scan": found, "scan_ends": f"bad: truncate here (size {one['size']})", "valid_until": at}
        if not one["size"]:
            return {"scan": found, "scan_ends": "blank: go to the next file", "valid_until": at}
        found.append(
            {"at": at, "size": one["size"], "cq_offset": one["cq_offset"], "tags_code": one["tags_code"], "phy": one["phy"]}
        )
        at += one["size"]


# -- writing ------------------------------------------------------------------------------------------------------------------


def encode(
    *,
    body: bytes,
    topic: bytes,
    properties: bytes,
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(4),
    born_port: int = 0,
    store_timestamp: int = 0,
    store_host: bytes = bytes(4),
    store_port: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    magic: int | None = None,
) -> bytes:
    """Return a record. ``sys_flag`` gets the bits for the addresses. Without ``magic``, the length of the topic selects it.

    Raises ValueError for what a record cannot hold.
    """
    if magic is None:
        magic = MAGIC if len(topic) <= MAX_TOPIC else LONG_TOPIC_MAGIC
    if len(topic) > (MAX_TOPIC if magic == MAGIC else MAX_LONG_TOPIC):
        raise ValueError(f"a topic of {len(topic)} bytes does not fit into this layout")
    if len(properties) > MAX_PROPERTIES:
        raise ValueError(f"properties of {len(properties)} bytes do not fit into a record (at most {MAX_PROPERTIES})")
    sys_flag = sys_flag & ~(BORN_V6 | STORE_V6) | (BORN_V6 if len(born_host) == 16 else 0)
    sys_flag |= STORE_V6 if len(store_host) == 16 else 0
    head = _HEADS[sys_flag >> 4 & 3]
    length = bytes((len(topic),)) if magic == MAGIC else _I16.pack(len(topic))
    total = head.size + len(body) + len(length) + len(topic) + 2 + len(properties)
    try:
        begin = head.pack(
            total, magic, body_crc(body) if body else 0, queue_id, flag, queue_offset, physical_offset, sys_flag,
            born_timestamp, born_host, born_port, store_timestamp, store_host, store_port, reconsume_times,
            prepared_transaction_offset, len(body),
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"a field does not fit into a record: {error}") from None
    return b"".join((begin, body, length, topic, _I16.pack(len(properties)), properties))


def blank(size: int) -> bytes:
    """Return the first 8 bytes of a blank record that fills ``size`` bytes."""
    return struct.pack(">iI", size, BLANK_MAGIC)
