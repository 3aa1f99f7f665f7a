"""Implementation of ``msgstore.contract.SegmentFormat``, which documents the methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgstore.contract import (
    BoundRecord,
    Buffer,
    CheckBody,
    FormatContext,
    GapFill,
    NoOptions,
    RecordContext,
    RecordError,
    RecordType,
    SegmentScan,
)
from msgstore_format_v2 import chains, gaps
from msgstore_format_v2.grammar import (
    HEADER,
    HOLE,
    HOLE_SIZE,
    MAX_RECORD,
    MESSAGE,
    MESSAGE_WITH_CHECKSUM,
    RECORD_HEAD,
    RECORD_SIZE,
)
from msgstore_format_v2.message import MessageRecord
from msgstore_format_v2.scan import scan_segment

_ASSIGNED = {MESSAGE, MESSAGE_WITH_CHECKSUM}
"""Type bytes of messages that the format's specification assigns; it reserves 0-127."""
_THIRD_PARTIES = range(128, 256)

_ID, _BODY = slice(HOLE_SIZE, RECORD_SIZE), slice(RECORD_SIZE, None)
"""Slices of a MESSAGE record; the id follows type and size. Constants, because every read uses them."""


class SegmentFormatV2:
    """Format of ``.sqs`` files: typed records after a 64-byte header. It binds ``message`` to MESSAGE
    itself; the descriptor of that type serves checks and names.

    Raises ValueError for record types that cannot be bound to their type bytes.
    """

    header = HEADER

    def __init__(self, context: FormatContext) -> None:
        bound = list(context.records)
        if all(record.name != "message" for record in bound):
            bound.append(BoundRecord("message", MESSAGE, MessageRecord(RecordContext(NoOptions(), MESSAGE))))
        self._types = _types_by_byte(bound)
        self._smallest = {HOLE: HOLE_SIZE} | {byte: record.overhead for byte, record in self._types.items()}
        writers = {record.name: record.record for record in bound}
        if context.record not in writers:
            raise ValueError(f"record type {context.record!r} is not bound to a type byte; bound are {', '.join(writers)}")
        self._record_type = writers[context.record]
        self.max_body = MAX_RECORD - self._record_type.overhead

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        return self._record_type.encode(ids, bodies)

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        if record[_ID] == msg_id and record[0] == MESSAGE:
            return record[_BODY]
        return self._decode_other(msg_id, record)

    def _decode_other(self, msg_id: bytes, record: bytes) -> bytes:
        """Decode a record of another type, or raise RecordError with the reason why ``record`` is invalid."""
        if len(record) < RECORD_SIZE:
            raise RecordError("size_mismatch", f"{len(record)} bytes, fewer than any record of a message has")
        kind, size, found = RECORD_HEAD.unpack_from(record)
        if kind not in self._types:
            raise RecordError("unrecognised_record_type", f"the type byte is {kind}")
        if size != len(record) or size < self._smallest[kind]:
            raise RecordError("size_mismatch", f"the size is {size} bytes in the record, {len(record)} in the index")
        if found != msg_id:
            raise RecordError("id_mismatch", f"the record has the id {found.hex()}")
        return self._types[kind].decode(record)

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        return self._types[data[offset]].body_span(offset, size)

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        return scan_segment(data, start, self._types, self._smallest, check_body)

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        return chains.find_chain(data, start, length, self._types, self._smallest)

    def gap_room(self, offset: int, size: int) -> int:
        return gaps.gap_room(offset, size)

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        return gaps.fill_gap(offset, size, records)


def _types_by_byte(bound: Iterable[BoundRecord]) -> dict[int, RecordType]:
    types: dict[int, RecordType] = {}
    for binding in bound:
        name, byte = binding.name, binding.byte
        if byte not in _ASSIGNED and byte not in _THIRD_PARTIES:
            raise ValueError(f"record type {name!r} cannot have type byte {byte}: format v2 leaves 128-255 to third parties")
        if (byte == MESSAGE) != (name == "message"):
            raise ValueError(f"record type {name!r} cannot have type byte {byte}: {MESSAGE} is reserved for 'message' alone")
        if byte in types:
            raise ValueError(f"record type {name!r} cannot have type byte {byte}: another record type is bound to it")
        if binding.record.overhead < RECORD_SIZE:
            raise ValueError(f"record type {name!r} has an overhead below {RECORD_SIZE}: no room for type, size and id")
        types[byte] = binding.record
    return types
