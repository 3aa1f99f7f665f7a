"""Segment format ``ledger``. :class:`msgstore.contract.CompactableFormat` documents the methods."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from foreign_backends.grammar import (
    CRC,
    FOREIGN,
    GAP_HEAD,
    HEADER,
    HEADER_SIZE,
    ID,
    LEAST_RECORD,
    MAX_BODY,
    RECORD,
    TORN,
    U32,
    InvalidHead,
    check_header,
    gap_head,
    head,
    id_of,
    is_intact,
    measure,
)
from msgstore.contract import Buffer, CheckBody, Damage, FormatContext, GapFill, RecordError, SegmentScan

_SECTOR = 512
"""Bytes that a disk writes atomically, at least."""
_zeros_at = re.compile(rb"\0*").match
_record_kinds = re.compile(b"[RF]").finditer


class LedgerFormat:
    """Format of ``.ledger`` files. msgstore writes RECORDs. FOREIGNs of other programs are read, moved and copied unchanged."""

    header = HEADER
    max_body = MAX_BODY

    def __init__(self, context: FormatContext) -> None:
        pass

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        heads = {length: head(RECORD, ID, length) for length in set(map(len, bodies))}
        parts: list[bytes] = []
        sizes: list[int] = []
        for msg_id, body in zip(ids, bodies, strict=True):
            front = heads[len(body)] + msg_id
            parts += (front, body, U32.pack(zlib.crc32(body, zlib.crc32(front))))
            sizes.append(len(front) + len(body) + CRC)
        return b"".join(parts), sizes

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        if len(record) < LEAST_RECORD:
            raise RecordError("size_mismatch", f"{len(record)} bytes, fewer than any record has")
        try:
            kind, at, key, size = measure(record, 0, len(record))
        except InvalidHead as error:
            raise RecordError("size_mismatch" if str(error) == TORN else str(error)) from None
        if kind not in (RECORD, FOREIGN):
            raise RecordError("not_a_record", f"the element begins with {chr(kind)!r}")
        if size != len(record):
            raise RecordError("size_mismatch", f"the size is {size} bytes in the record, {len(record)} in the index")
        found = id_of(kind, record[at : at + key])
        if found != msg_id:
            raise RecordError("id_mismatch", f"the record has the id {found.hex()}")
        if not is_intact(record, 0, size):
            raise RecordError("checksum_mismatch")
        return record[at + key : -CRC]

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        _, at, key, _ = measure(data, offset, len(data))
        return at + key, offset + size - CRC

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        scan = SegmentScan()
        total = len(data)
        if total < HEADER_SIZE:
            return scan.ended("torn", 0)
        scan.header = check_header(data)
        offset = max(start, HEADER_SIZE)
        if offset > total:
            return scan.ended("torn", offset)
        found = self._scan_elements(data, offset, scan, check_body)
        found.separate_copies()
        return found

    def _scan_elements(self, data: Buffer, offset: int, scan: SegmentScan, check_body: CheckBody | None) -> SegmentScan:
        """Add all elements from ``offset`` on to ``scan``, set its end, and return it. GAPs, INDEXes and PADs are holes."""
        total = len(data)
        while offset < total:
            try:
                kind, at, key, size = measure(data, offset, total)
            except InvalidHead as error:
                zeros = _zeros_at(data, offset)
                if str(error) == TORN or (zeros is not None and zeros.end() == total):
                    return scan.ended("torn", offset)
                return scan.ended("corrupt", offset, str(error))
            if kind in (RECORD, FOREIGN):
                if not is_intact(data, offset, size):
                    scan.damage.append(Damage(offset, size, "checksum_mismatch"))
                elif check_body is not None and not check_body(
                    id_of(kind, data[at : at + key]), data[at + key : offset + size - CRC]
                ):
                    scan.damage.append(Damage(offset, size, "invalid_message_body"))
                else:
                    scan.records.add(id_of(kind, data[at : at + key]), offset, size)
            else:
                scan.hole_offsets.append(offset)
                scan.hole_sizes.append(size)
            offset += size
        return scan.ended("clean", offset)

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        """Find a record that valid elements follow. Reads only heads, each of a few bytes, so the search is linear."""
        total = len(data)
        for match in _record_kinds(data, max(start, HEADER_SIZE)):
            if _is_chain(data, match.start(), total, length):
                return match.start()
        return None

    def gap_room(self, offset: int, size: int) -> int:
        """Return ``size``, or 0 if no record fits or the head of the gap spans two sectors and could be torn."""
        straddles = offset % _SECTOR > _SECTOR - GAP_HEAD
        return 0 if straddles or size < LEAST_RECORD + ID else size

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        """Return the writes that put ``records`` into the gap.

        First the gap becomes a GAP, and a scan skips its inside. Then everything is written except the bytes that the head of
        the GAP covers. Those bytes come last and make the records visible.
        """
        if not records:
            return GapFill()
        run = b"".join(records)
        if len(run) > self.gap_room(offset, size):
            raise ValueError(f"the gap of {size} bytes at {offset} has no room for {len(run)} bytes of records")
        inside = run[GAP_HEAD:] + gap_head(size - len(run))
        return GapFill(
            prepare=[(offset, gap_head(size))],
            inside=[(offset + GAP_HEAD, inside)],
            seal=[(offset, run[:GAP_HEAD])],
        )


def _is_chain(data: Buffer, offset: int, total: int, length: int) -> bool:
    for _ in range(length):
        try:
            size = measure(data, offset, total)[3]
        except InvalidHead:
            return False
        offset += size
        if offset == total:
            return True
    return True
