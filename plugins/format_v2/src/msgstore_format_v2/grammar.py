"""The bytes of a v2 segment: header, type bytes, holes, and the rules that every record keeps.

All integers are big-endian and unsigned; sizes are whole records, in bytes. Source of every rule: the design of the format,
"CQ shared message store v2" (https://github.com/rabbitmq/rabbitmq-server), sections 3.1-3.6, and what its implementation
does with bytes that break them.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from msgstore.contract import Buffer
from msgstore.contract.formats import HeaderState

MAGIC = b"RSQS"
VERSION = 2
HEADER = (MAGIC + bytes([VERSION])).ljust(64, b"\0")
HEADER_SIZE = len(HEADER)
"""The first record of a segment is at this offset."""

SMALL_HOLE = 1
"""One byte. A run of 1-4 of them is a gap that is too small for a HOLE."""
HOLE = 2
"""Type 1, size 4, then size - 5 bytes that nobody interprets."""
MESSAGE = 3
"""Type 1, size 4, id 16, body."""

HOLE_SIZE = 5
"""Of the smallest HOLE; also the bytes of type and size that every record but a SMALL_HOLE begins with."""
RECORD_SIZE = 21
"""Type, size and id, which every record of a message begins with, whatever its type."""
MAX_RECORD = 2**32 - 1

TORN = "torn"
"""What :func:`measure` answers for a record that the end of the file cuts off. The other answers are kinds of corruption."""

HOLE_HEAD = Struct(">BI")
RECORD_HEAD = Struct(">BI16s")
SMALL_HOLES = bytes([SMALL_HOLE])


def judge_header(data: Buffer) -> HeaderState:
    """What the header of a segment of at least 64 bytes says. The reserved bytes say nothing: readers ignore them."""
    if data[:4] != MAGIC:
        return "bad_magic"
    return "ok" if data[4] == VERSION else "bad_version"


def hole_head(size: int) -> bytes:
    """The bytes that make a gap of ``size`` bytes a hole; whatever is behind them in the gap may stay."""
    return SMALL_HOLES * size if size < HOLE_SIZE else HOLE_HEAD.pack(HOLE, size)


def measure(data: Buffer, offset: int, after_hole: bool, smallest: Mapping[int, int]) -> int | str:
    """The size of the record at ``offset`` (of the whole run, for SMALL_HOLEs), or why there is none.

    ``smallest`` has the least size of each known type but SMALL_HOLE. The tests are in the order of the broker's own
    scanner: which reason a broken record gets depends on it.
    """
    kind = data[offset]
    if kind == SMALL_HOLE:
        if after_hole:
            return "hole_after_hole"
        run = data[offset : offset + HOLE_SIZE]
        length = len(run) - len(run.lstrip(SMALL_HOLES))
        return length if length < HOLE_SIZE else "small_hole_run_too_long"
    if kind not in smallest:
        return "unrecognised_record_type"
    if after_hole and kind == HOLE:
        return "hole_after_hole"
    remaining = len(data) - offset
    if remaining < HOLE_SIZE:
        return TORN
    size = int.from_bytes(data[offset + 1 : offset + HOLE_SIZE], "big")
    if size < smallest[kind]:
        return "invalid_hole_size" if kind == HOLE else "invalid_message_size"
    return size if size <= remaining else TORN
