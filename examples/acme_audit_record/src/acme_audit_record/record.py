"""Byte layout of an audit record, and its checksum.

Big-endian: type 1, size 4 (of the whole record), id 16, CRC 4, time 8, actor 32, body. The configuration chooses the type byte.
The time is in nanoseconds since the epoch. The actor is UTF-8, padded with zeros. The CRC is zlib's CRC-32 over every other
byte of the record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain, repeat
from struct import Struct
from zlib import crc32

from acme_audit_record.plugin import ACTOR_SIZE
from msgstore.contract import Buffer, RecordContext, RecordError

_HEAD = Struct(">BI16s")
_CRC = Struct(">I")
_NOTE = Struct(f">q{ACTOR_SIZE}s")
_CRC_AT = _HEAD.size
_NOTE_AT = _CRC_AT + _CRC.size
_BODY_AT = _NOTE_AT + _NOTE.size

MISMATCH = "checksum_mismatch"


class AuditRecord:
    """Implementation of :class:`msgstore.contract.RecordType`, with fields. Thread-safe: it keeps no state between calls."""

    overhead = _BODY_AT

    def __init__(self, context: RecordContext) -> None:
        self._byte = context.byte
        self._actor = context.options.actor.encode()

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """Return all records and their sizes. The records of a batch have the same time: they are written with one call."""
        note = _NOTE.pack(time.time_ns(), self._actor)
        sizes = [_BODY_AT + len(body) for body in bodies]
        heads = list(map(_HEAD.pack, repeat(self._byte), sizes, ids))
        sums = [_CRC.pack(crc32(body, crc32(note, crc32(head)))) for head, body in zip(heads, bodies, strict=True)]
        return b"".join(chain.from_iterable(zip(heads, sums, repeat(note), bodies))), sizes

    def decode(self, record: bytes) -> bytes:
        if self.check(record, 0, len(record)) is not None:
            raise RecordError(MISMATCH)
        return record[_BODY_AT:]

    def check(self, data: Buffer, offset: int, size: int) -> str | None:
        head = data[offset : offset + _CRC_AT]
        (expected,) = _CRC.unpack_from(data, offset + _CRC_AT)
        return None if crc32(data[offset + _NOTE_AT : offset + size], crc32(head)) == expected else MISMATCH

    def body_span(self, offset: int, size: int) -> tuple[int, int]:
        return offset + _BODY_AT, offset + size

    def fields(self, record: bytes) -> tuple[int, str]:
        """Return time and actor from the record itself; the options of this store do not matter."""
        nanoseconds, actor = _NOTE.unpack_from(record, _NOTE_AT)
        return nanoseconds, actor.rstrip(b"\0").decode(errors="replace")
