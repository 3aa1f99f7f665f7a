"""The bytes of a v1 record, and what makes some bytes look like one.

Big-endian: size 8 (= 16 + length of the body), id 16, body, one byte 255. A segment has no header and its holes have no
marks. Source: ``rabbit_msg_file.erl`` of RabbitMQ 3.x and the segments that it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct

from msgstore.contract import Buffer

HEAD = Struct(">Q16s")
BODY_AT = HEAD.size
OVERHEAD = BODY_AT + 1
"""Of a record, beside its body."""
SIZE_FIELD = 8
LEAST_SIZE = 16
"""Of the size field: the id alone."""
UNCOUNTED = OVERHEAD - LEAST_SIZE
"""Bytes of a record that its size field does not count: itself and the last byte."""

END_MARK = b"\xff"
HIGH_HALF = bytes(4)
"""The first half of the size field of any record below 4 GiB."""
SEAM = END_MARK + HIGH_HALF
"""What stands between two records, and between a record and a zero-filled hole."""

_zeros_at = re.compile(rb"\0*").match


def end_of_zeros(data: Buffer, offset: int) -> int:
    """The offset of the first byte at or after ``offset`` that is not zero, or the end of ``data``. Runs in C, 1 ns a byte."""
    zeros = _zeros_at(data, offset)
    return offset if zeros is None else zeros.end()


def plausible_size(data: Buffer, offset: int) -> int | None:
    """The size of the whole record that seems to stand at ``offset``, or None: it must fit, and end in its mark."""
    size = int.from_bytes(data[offset : offset + SIZE_FIELD], "big")
    end = offset + size + UNCOUNTED
    if size < LEAST_SIZE or end > len(data) or data[end - 1] != END_MARK[0]:
        return None
    return size + UNCOUNTED


def is_followed(data: Buffer, end: int) -> bool:
    """True if behind a record that ends at ``end`` there is what should be: the next one's high half, zeros, or nothing."""
    return HIGH_HALF.startswith(data[end : end + len(HIGH_HALF)])


def candidates(data: Buffer, offset: int) -> Iterator[int]:
    """Every offset from ``offset`` on where a size field that fits into the file may begin, in ascending order.

    The field of a size below the file's begins with zeros, whatever the file's own size field would have of them: a search for
    that many passes over bodies in C. A run of zeros, be it a whole hole, has its candidates at its very end: a size field that
    begins more than 7 bytes before the first other byte is zero, less than 16.
    """
    lead = bytes(SIZE_FIELD - (len(data).bit_length() + 7) // 8)
    while (run := data.find(lead, offset)) >= 0:
        first = end_of_zeros(data, run)
        if first == len(data):
            return
        yield from range(max(run, first - SIZE_FIELD + 1), first - len(lead) + 1)
        offset = first + 1
