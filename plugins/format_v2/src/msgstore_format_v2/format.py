"""Implementation of ``msgstore.contract.CompactableFormat``, which documents the methods."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

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
from msgstore_format_v2.grammar import (
    HEADER,
    HEADER_SIZE,
    HOLE,
    HOLE_SIZE,
    MAX_RECORD,
    MESSAGE,
    MESSAGE_WITH_CHECKSUM,
    RECORD_HEAD,
    RECORD_SIZE,
    SMALL_HOLE,
    hole_head,
    measure,
)
from msgstore_format_v2.message import MessageRecord
from msgstore_format_v2.scan import scan_segment

_ASSIGNED = {MESSAGE, MESSAGE_WITH_CHECKSUM}
"""Type bytes of messages that the format's specification assigns; it reserves 0-127."""
_THIRD_PARTIES = range(128, 256)
_SECTOR = 512
"""Bytes that a disk writes atomically, at least."""

_HEAD, _BODY = slice(RECORD_SIZE), slice(RECORD_SIZE, None)
"""Slices of a MESSAGE record; its head is type, size and id. Constants, because every read uses them."""
_pack_head = RECORD_HEAD.pack


class SegmentFormatV2:
    """Format of ``.sqs`` files: typed records after a 64-byte header. The record type of new messages makes their bytes.

    The type ``message``, with byte 3, is there even if nothing binds it: then this class creates the ``MessageRecord``. The
    descriptor of ``message`` tells tools the name, and that the type is FRAMED.

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
        try:
            if record[_HEAD] == _pack_head(MESSAGE, len(record), msg_id):
                return record[_BODY]
        except struct.error:
            pass  # larger than any record
        return self._decode_other(msg_id, record)

    def _decode_other(self, msg_id: bytes, record: bytes) -> bytes:
        """Decode a record of another type, or raise RecordError with the reason why ``record`` is invalid."""
        if len(record) < RECORD_SIZE:
            raise RecordError("size_mismatch", f"{len(record)} bytes, fewer than any record of a message has")
        kind, size, found = RECORD_HEAD.unpack_from(record)
        if kind not in self._types:
            raise RecordError("unrecognised_record_type", f"the type byte is {kind}")
        if size != len(record):
            raise RecordError("size_mismatch", f"the size is {size} bytes in the record, {len(record)} in the index")
        if size < (least := self._smallest[kind]):
            raise RecordError(
                "size_mismatch",
                f"{size} bytes, and a record with type byte {kind} has at least {least}: "
                "another version of the plugin of its record type may have written it",
            )
        if found != msg_id:
            raise RecordError("id_mismatch", f"the record has the id {found.hex()}")
        return self._types[kind].decode(record)

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        return self._types[data[offset]].body_span(offset, size)

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        return scan_segment(data, start, self._types, self._smallest, check_body)

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        """Return the offset of a chain that begins with the record of a message: bytes that look like a hole by chance would
        hide real records. The search is linear, because each candidate costs at most ``length`` steps."""
        total = len(data)
        # A size that fits into the file has a small first byte: this test alone excludes nearly every byte of a body.
        kinds, first_size_byte = re.escape(bytes(self._types)), re.escape(bytes([min(total >> 24, 255)]))
        candidates = re.compile(b"[%b](?=[\\x00-%b])" % (kinds, first_size_byte), re.DOTALL)
        known = {SMALL_HOLE, *self._smallest}
        stored_parts, first = getattr(data, "stored_parts", None), max(start, HEADER_SIZE)
        parts = stored_parts(first) if stored_parts else [(first, total)]
        for match in chain.from_iterable(candidates.finditer(data, begin, end) for begin, end in parts):
            offset = match.start()
            end = offset + int.from_bytes(data[offset + 1 : offset + HOLE_SIZE], "big")
            # The type byte of the next record excludes most candidates at a lower cost than the walk.
            if end <= total and (end == total or data[end] in known) and _is_chain(data, offset, length, self._smallest):
                return offset
        return None

    def gap_room(self, offset: int, size: int) -> int:
        """Return ``size``, or 0 if no record fits, no hole is so large, or the gap's first five bytes span two sectors and
        could be torn."""
        straddles = offset % _SECTOR > _SECTOR - HOLE_SIZE
        return 0 if straddles or not RECORD_SIZE <= size <= MAX_RECORD else size

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        """Return the writes that put ``records`` into the gap; none if there are no records.

        First the gap becomes one HOLE, and a scan skips its inside. Then everything but the type and size of the first record
        is written. Those five bytes come last: they replace the HOLE with the records and a smaller hole. All writes together
        have at most 10 bytes more than the records.
        """
        if not records:
            return GapFill()
        run = b"".join(records)
        room = self.gap_room(offset, size)
        if len(run) > room:
            raise ValueError(f"the gap of {size} bytes at {offset} has room for {room} bytes of records, not for {len(run)}")
        inside = run[HOLE_SIZE:] + hole_head(size - len(run))
        return GapFill([(offset, hole_head(size))], [(offset + HOLE_SIZE, inside)], [(offset, run[:HOLE_SIZE])])


def _is_chain(data: Buffer, offset: int, length: int, smallest: Mapping[int, int]) -> bool:
    total, after_hole = len(data), False
    for _ in range(length):
        size = measure(data, offset, after_hole, smallest)
        if isinstance(size, str):
            return False
        after_hole = data[offset] <= HOLE
        offset += size
        if offset == total:
            return True
    return True


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
