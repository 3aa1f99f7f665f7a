"""Byte layout of a v1 record, and scan of a whole segment: record after record, and byte by byte where there is none.

Big-endian: size 8 (= 16 + length of the body), id 16, body, one byte 255. A segment has no header, and nothing marks its
holes. Source: ``rabbit_msg_file.erl`` of RabbitMQ 3.x, which scans in the same way, and the segments that it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import ne
from struct import Struct

from msgstore.contract import Buffer, CheckBody, Damage, SegmentScan

HEAD = Struct(">Q16s")
BODY_AT = HEAD.size
OVERHEAD = BODY_AT + 1
"""Bytes of a record in addition to its body."""
SIZE_FIELD = 8
LEAST_SIZE = 16
"""Smallest value of the size field: the id without a body."""
UNCOUNTED = OVERHEAD - LEAST_SIZE
"""Bytes of a record that its size field does not count: the size field and the last byte."""

END_MARK = b"\xff"
HIGH_HALF = bytes(4)
"""First half of the size field of any record below 4 GiB."""
SEAM = END_MARK + HIGH_HALF
"""Bytes at the boundary between two records, or between a record and a zero-filled hole."""

TERMS = (b"\x83h", b"\x83m")
"""First bytes of the bodies that brokers store: an Erlang term, a tuple or a binary."""

_BATCH_BYTES = 1 << 20
_zeros_at = re.compile(rb"\0*").match


def end_of_zeros(data: Buffer, offset: int) -> int:
    """Return the offset of the first non-zero byte from ``offset`` on, or the end of ``data``. Runs in C, 1 ns per byte that is
    stored; the holes of a sparse file cost nothing."""
    stored_parts = getattr(data, "stored_parts", None)
    for begin, end in stored_parts(offset) if stored_parts else [(offset, len(data))]:
        zeros = _zeros_at(data, begin, end)
        if zeros is not None and zeros.end() < end:
            return zeros.end()
    return max(offset, len(data))


def plausible_size(data: Buffer, offset: int) -> int | None:
    """Return the size of the whole record that may begin at ``offset``, or None: it must fit, and end with the end mark."""
    size = int.from_bytes(data[offset : offset + SIZE_FIELD], "big")
    end = offset + size + UNCOUNTED
    if size < LEAST_SIZE or end > len(data) or data[end - 1] != END_MARK[0]:
        return None
    return size + UNCOUNTED


def is_followed(data: Buffer, end: int) -> bool:
    """Return True if the bytes after ``end`` may follow a record: the high half of a size field, zeros, or the end of data."""
    return HIGH_HALF.startswith(data[end : end + len(HIGH_HALF)])


def candidates(data: Buffer, offset: int) -> Iterator[int]:
    """Yield each offset from ``offset`` on at which a size field that fits into the file may begin, in ascending order.

    A size below the file's size begins with a known number of zero bytes. Searching for them skips bodies in C. In a longer
    run of zeros, only offsets in its last 7 bytes are candidates: an earlier size field is zero, but the minimum is 16.
    """
    lead = bytes(SIZE_FIELD - (len(data).bit_length() + 7) // 8)
    while (run := data.find(lead, offset)) >= 0:
        first = end_of_zeros(data, run)
        if first == len(data):
            return
        yield from range(max(run, first - SIZE_FIELD + 1), first - len(lead) + 1)
        offset = first + 1


def scan_segment(data: Buffer, start: int, check_body: CheckBody | None) -> SegmentScan:
    """Scan ``data`` from ``start`` on; see ``SegmentFormat.scan``.

    The inner loop accepts records that another record or zeros follow, which are nearly all. :func:`find_record` decides all
    other cases. The bytes between two records are a hole, or damage (:func:`is_damaged_record`). A record whose body fails
    ``check_body`` is damage.
    """
    scan = SegmentScan()
    total = len(data)
    offset = start
    unpack = HEAD.unpack_from
    fast_end = total - OVERHEAD if check_body is None else -1
    found: tuple[int, int] | None = (start, 0)
    while found is not None and offset < total:
        ids: list[bytes] = []
        offsets: list[int] = []
        sizes: list[int] = []
        limit = min(offset + _BATCH_BYTES, total)
        last_head = min(limit, fast_end)
        while offset < limit:
            while offset <= last_head:
                size, msg_id = unpack(data, offset)
                end = offset + size + UNCOUNTED
                if size < LEAST_SIZE or data[end - 1 : end + 4] != SEAM:
                    break
                ids.append(msg_id)
                offsets.append(offset)
                sizes.append(end - offset)
                offset = end
            if offset >= limit or (found := find_record(data, offset)) is None:
                break
            at, size = found
            if at > offset and is_damaged_record(data, offset, at - offset):
                scan.damage.append(Damage(offset, at - offset, "invalid_size"))
            elif at > offset:
                scan.hole_offsets.append(offset)
                scan.hole_sizes.append(at - offset)
            offset = at + size
            if check_body is not None and not check_body(data[at + SIZE_FIELD : at + BODY_AT], data[at + BODY_AT : offset - 1]):
                scan.damage.append(Damage(at, size, "invalid_message_body"))
                continue
            ids.append(data[at + SIZE_FIELD : at + BODY_AT])
            offsets.append(at)
            sizes.append(size)
        scan.records.extend(ids, offsets, sizes, bytes(len(ids)))
    scan.separate_copies()
    return _end(scan, data, offset)


def is_damaged_record(data: Buffer, offset: int, size: int) -> bool:
    """Return True if these bytes, which are no record, are a broker's record with a wrong size or last byte.

    A broker's body is where a record has one, and at most three bytes of the size field are wrong. A gap may also hold the end
    of a dead record, which a compaction did not overwrite: there, both would be a coincidence.
    """
    if size <= OVERHEAD or data[offset + BODY_AT : offset + BODY_AT + len(TERMS[0])] not in TERMS:
        return False
    right = (size - UNCOUNTED).to_bytes(SIZE_FIELD, "big")
    wrong: int = sum(map(ne, data[offset : offset + SIZE_FIELD], right))
    return wrong <= 3


def find_record(data: Buffer, offset: int) -> tuple[int, int] | None:
    """Return (offset, size) of the first record from ``offset`` on, or None.

    After a zero-filled hole, the last zeros and the first bytes of a real size field can look like a smaller record. Such a
    phantom begins up to 7 bytes too early. It may even end with the end mark, but no valid bytes follow it. A record that
    begins within the phantom's first 8 bytes, and that valid bytes follow, is therefore returned instead.
    """
    for at in candidates(data, offset):
        size = plausible_size(data, at)
        if size is None:
            continue
        if not is_followed(data, at + size):
            for later in range(at + 1, at + SIZE_FIELD):
                later_size = plausible_size(data, later)
                if later_size is not None and is_followed(data, later + later_size):
                    return later, later_size
        return at, size
    return None


def _end(scan: SegmentScan, data: Buffer, offset: int) -> SegmentScan:
    """Set the end of the scan. ``offset`` ends the last record: zeros after it are a hole, other bytes a torn write."""
    total = len(data)
    if offset > total or end_of_zeros(data, offset) < total:
        return scan.ended("torn", offset)
    if offset < total:
        scan.hole_offsets.append(offset)
        scan.hole_sizes.append(total - offset)
    return scan.ended("clean", total)
