"""Implementation of ``msgstore.contract.SegmentFormat``, which documents the methods."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat

from msgstore.contract import Buffer, CheckBody, FormatContext, GapFill, RecordError, SegmentScan
from msgstore.locations import LIMIT
from msgstore_format_v1.scan import BODY_AT, END_MARK, HEAD, LEAST_SIZE, OVERHEAD, UNCOUNTED, scan_segment

_read_head = HEAD.unpack_from


class SegmentFormatV1:
    """Format of ``.rdq`` files: size, id, body, 255. Records have no types, so the record types of the context are ignored."""

    header = b""
    max_body = LIMIT - 1 - OVERHEAD
    """Limit of a location. The size field itself has 8 bytes."""

    def __init__(self, context: FormatContext) -> None:
        pass

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        lengths = list(map(len, bodies))
        heads = map(HEAD.pack, map(LEAST_SIZE.__add__, lengths), ids)
        records = b"".join(chain.from_iterable(zip(heads, bodies, repeat(END_MARK, len(lengths)), strict=True)))
        return records, list(map(OVERHEAD.__add__, lengths))

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        try:
            size, found = _read_head(record)
        except struct.error:
            raise RecordError("size_mismatch", f"{len(record)} bytes, fewer than any record has") from None
        if found == msg_id and size + UNCOUNTED == len(record) and record[-1] == 255:
            return record[BODY_AT:-1]
        if size + UNCOUNTED != len(record):
            raise RecordError(
                "size_mismatch", f"the size is {size + UNCOUNTED} bytes in the record, {len(record)} in the index"
            )
        if found != msg_id:
            raise RecordError("id_mismatch", f"the record has the id {found.hex()}")
        raise RecordError("end_mark_missing", f"the last byte is {record[-1]}, not 255")

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        return offset + BODY_AT, offset + size - 1

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        return scan_segment(data, start, check_body)

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        """Return None: a scan of this format continues after damage by itself."""
        return None

    def gap_room(self, offset: int, size: int) -> int:
        """Return 0: a scan reads the bytes inside a hole of this format, so a hole cannot hide an unfinished move."""
        return 0

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        return GapFill()
