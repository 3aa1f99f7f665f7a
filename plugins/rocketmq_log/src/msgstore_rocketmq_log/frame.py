"""Frame of the v2 layout: what stands around the header. Big-endian; the first two words are those of v1.

::

    total size 4 (a multiple of 8), magic 4 (DAA320AF), CRC-32 of what follows 4, version 2 (= 1), reserved 2 (0),
    physical offset 8, queue offset 8, store time 8, bytes of the header 4, bytes of the body 4,
    header (FlatBuffers), zeros up to a multiple of 8, body, zeros up to a multiple of 8

The three values that are known only when a record is appended are in the frame, so that the header is built before.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import attrs

from msgstore_rocketmq_log import flat
from msgstore_rocketmq_log.records import V2_MAGIC, Buffer

VERSION = 1
_HEAD = struct.Struct(">iIIHHqqqii")
_PLACE = struct.Struct(">qqq")
_CRC = struct.Struct(">I")
_CRC_AT, _CHECKED_FROM, _PLACE_AT = 8, 12, 16
HEAD_BYTES = _HEAD.size


@attrs.frozen
class Frame:
    """A record of the v2 layout."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int
    header_bytes: bytes = attrs.field(repr=False)
    """The header as stored. A copy keeps it, with fields that this version does not know."""
    body: bytes = attrs.field(repr=False)

    def header(self) -> dict[str, Any]:
        """Return the fields of the header. Raises :class:`msgstore_rocketmq_log.flat.InvalidError`."""
        return flat.read_header(self.header_bytes)

    def encode(self) -> bytes:
        """Return the record."""
        total = HEAD_BYTES + _padded(len(self.header_bytes)) + _padded(len(self.body))
        record = bytearray(total)
        _HEAD.pack_into(
            record, 0, total, V2_MAGIC, 0, VERSION, 0, self.physical_offset, self.queue_offset, self.store_timestamp,
            len(self.header_bytes), len(self.body),
        )  # fmt: skip
        record[HEAD_BYTES : HEAD_BYTES + len(self.header_bytes)] = self.header_bytes
        at = HEAD_BYTES + _padded(len(self.header_bytes))
        record[at : at + len(self.body)] = self.body
        _CRC.pack_into(record, _CRC_AT, zlib.crc32(memoryview(record)[_CHECKED_FROM:]))
        return bytes(record)


def _padded(size: int) -> int:
    return size + -size % 8


def make_frame(header: Mapping[str, Any], body: bytes, **place: int) -> Frame:
    """Return a frame with a new header. ``place``: physical offset, queue offset and store time, by default 0."""
    found = {"physical_offset": 0, "queue_offset": 0, "store_timestamp": 0} | place
    return Frame(header_bytes=flat.encode_header(header), body=body, **found)


def read_frame(data: Buffer, at: int = 0) -> Frame | str:
    """Return the frame of the record at ``at``, or the reason why there is none. The header is not read."""
    left = len(data) - at
    if left < HEAD_BYTES:
        return "the record ends early"
    total, magic, crc, version, reserved, physical, queue, store, header_size, body_size = _HEAD.unpack_from(data, at)
    if magic != V2_MAGIC:
        return f"the magic is 0x{magic:08X}"
    if total < HEAD_BYTES or total > left:
        return f"the record has a size of {total} bytes, and {left} are left"
    if version != VERSION or reserved:
        return f"the version of the frame is {version}, and this reader knows {VERSION}"
    if min(header_size, body_size) < 0 or HEAD_BYTES + _padded(header_size) + _padded(body_size) != total:
        return "the sizes of header and body do not add up"
    content = bytes(data[at : at + total])
    if zlib.crc32(content[_CHECKED_FROM:]) != crc:
        return "the checksum is wrong"
    begin = HEAD_BYTES + _padded(header_size)
    return Frame(physical, queue, store, content[HEAD_BYTES : HEAD_BYTES + header_size], content[begin : begin + body_size])


def decode_v2(data: bytes) -> dict[str, Any] | None:
    """Return the fields of a record of the v2 layout; None for anything else. The body is in hexadecimal digits."""
    frame = read_frame(data)
    if isinstance(frame, str):
        return None
    try:
        header = frame.header()
    except flat.InvalidError:
        return None
    return {
        "total_size": HEAD_BYTES + _padded(len(frame.header_bytes)) + _padded(len(frame.body)),
        "version": VERSION,
        "physical_offset": frame.physical_offset,
        "queue_offset": frame.queue_offset,
        "store_timestamp": frame.store_timestamp,
        "header_len": len(frame.header_bytes),
        "body_len": len(frame.body),
        "header": header,
        "body": frame.body.hex(),
    }
