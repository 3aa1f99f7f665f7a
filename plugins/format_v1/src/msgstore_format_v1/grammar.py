"""Byte layout of a v1 record, and the tests by which a scan recognises one.

Big-endian: size 8 (= 16 + length of the body), id 16, body, one byte 255. A segment has no header, and nothing marks its
holes. Source: ``rabbit_msg_file.erl`` of RabbitMQ 3.x and the segments that it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct

from msgstore.contract import Buffer

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

_zeros_at = re.compile(rb"\0*").match


def end_of_zeros(data: Buffer, offset: int) -> int:
    """Return the offset of the first non-zero byte from ``offset`` on, or the end of ``data``. Runs in C, 1 ns per byte."""
    zeros = _zeros_at(data, offset)
    return offset if zeros is None else zeros.end()


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
