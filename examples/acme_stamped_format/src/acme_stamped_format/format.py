"""Segment format ``stamped``: records of size (4 bytes), id (16 bytes), time in nanoseconds (8 bytes) and body, big-endian."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from itertools import chain

from msgstore.contract import Buffer, CheckBody, FormatContext, RecordError, SegmentScan

_HEAD = struct.Struct(">I16sQ")
_MAX_SIZE = 2**32 - 1
_FIRST_TIME, _LAST_TIME = 10**18, 2**63 - 1
"""Times before September 2001 are taken for damage: a hole of zeros must not look like records."""


class Stamped:
    """Implementation of :class:`msgstore.contract.SegmentFormat`, with fields. It keeps no state between calls."""

    header = b""
    max_body = _MAX_SIZE - _HEAD.size

    def __init__(self, context: FormatContext) -> None:
        """``context`` has no options."""

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        sizes, now = [_HEAD.size + len(body) for body in bodies], time.time_ns()
        heads = (_HEAD.pack(size, msg_id, now) for size, msg_id in zip(sizes, ids, strict=True))
        return b"".join(chain.from_iterable(zip(heads, bodies, strict=True))), sizes

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        if len(record) < _HEAD.size or self._size_at(record, 0) != len(record):
            raise RecordError("invalid_message_size")
        if record[4:20] != msg_id:
            raise RecordError("id_mismatch")
        return record[_HEAD.size :]

    def fields(self, record: bytes) -> tuple[object, ...]:
        return (_HEAD.unpack_from(record)[2],)

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        return offset + _HEAD.size, offset + size

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        scan, offset, total = SegmentScan(), start, len(data)
        state, reason = "clean", None
        while offset < total:
            size = self._size_at(data, offset)
            if size is None:
                state, reason = ("torn", None) if total - offset < _HEAD.size else ("corrupt", "invalid_message_size")
                break
            if size > total - offset:
                state = "torn"
                break
            msg_id = data[offset + 4 : offset + 20]
            if check_body is not None and not check_body(msg_id, data[offset + _HEAD.size : offset + size]):
                state, reason = "corrupt", "invalid_message_body"
                break
            scan.records.add(msg_id, offset, size)
            offset += size
        scan.separate_copies()
        return scan.ended(state, offset, reason)  # type: ignore[arg-type]  # one of EndState

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        return next((offset for offset in range(start, len(data)) if self._is_chain(data, offset, length)), None)

    def _is_chain(self, data: Buffer, offset: int, length: int) -> bool:
        while length and offset < len(data):
            size = self._size_at(data, offset)
            if size is None or size > len(data) - offset:
                return False
            offset, length = offset + size, length - 1
        return True

    def _size_at(self, data: Buffer, offset: int) -> int | None:
        """Return the size of the record that begins at ``offset``, or None if no record can begin there."""
        if len(data) - offset < _HEAD.size:
            return None
        size, _, written = _HEAD.unpack_from(data, offset)
        return size if size >= _HEAD.size and _FIRST_TIME <= written <= _LAST_TIME else None
