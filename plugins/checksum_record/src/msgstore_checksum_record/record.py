"""Byte layout and checks of MESSAGE_WITH_CHECKSUM.

Big-endian: type (1 byte, 4 unless the store binds another), size (4 bytes, of the whole record), id (16), CRC (4), body
(size - 25). Source of the layout: section 3.2 of the design of format v2. The design does not define the CRC. This module
uses CRC-32C (RFC 3720, B.4) over type, size and id, then the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from struct import Struct

from crc32c import crc32c

from msgstore.contract import Buffer, RecordContext, RecordError

_HEAD = Struct(">BI16s")
_CRC = Struct(">I")
_CRC_AT = _HEAD.size
_BODY_AT = _HEAD.size + _CRC.size

MISMATCH = "checksum_mismatch"


class ChecksumRecord:
    """Record of a message with a checksum. Every flipped bit is detected, in a read and in a scan."""

    overhead = _BODY_AT

    def __init__(self, context: RecordContext) -> None:
        self._byte = context.byte

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        sizes = [_BODY_AT + len(body) for body in bodies]
        heads = list(map(_HEAD.pack, repeat(self._byte), sizes, ids))
        sums = map(_CRC.pack, map(crc32c, bodies, map(crc32c, heads)))  # the CRC of the head, continued over the body
        return b"".join(chain.from_iterable(zip(heads, sums, bodies, strict=True))), sizes

    def decode(self, record: bytes) -> bytes:
        body = record[_BODY_AT:]
        if crc32c(body, crc32c(record[:_CRC_AT])) != int.from_bytes(record[_CRC_AT:_BODY_AT], "big"):
            raise RecordError(MISMATCH)
        return body

    def check(self, data: Buffer, offset: int, size: int) -> str | None:
        head = data[offset : offset + _BODY_AT]
        body = data[offset + _BODY_AT : offset + size]
        return None if crc32c(body, crc32c(head[:_CRC_AT])) == int.from_bytes(head[_CRC_AT:], "big") else MISMATCH

    def body_span(self, offset: int, size: int) -> tuple[int, int]:
        return offset + _BODY_AT, offset + size
