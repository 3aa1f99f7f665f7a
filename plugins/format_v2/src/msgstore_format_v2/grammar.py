"""Byte layout of a v2 segment: header, type bytes, holes, and the rules for every record.

All integers are big-endian and unsigned; sizes are whole records, in bytes. Source of every rule: the design of the format,
"CQ shared message store v2" (https://github.com/rabbitmq/rabbitmq-server), sections 3.1-3.6. For bytes that break the rules,
the source is its implementation.
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
"""Offset of the first record of a segment."""

SMALL_HOLE = 1
"""A one-byte record. A run of 1-4 of them fills a gap that is too small for a HOLE."""
HOLE = 2
"""1 byte of type, 4 bytes of size, then size - 5 bytes without meaning."""
MESSAGE = 3
"""1 byte of type, 4 bytes of size, 16 bytes of id, then the body."""
MESSAGE_WITH_CHECKSUM = 4
"""Type byte that the specification assigns to the record type ``checksum``, of ``plugins/checksum_record``. A store may bind
it to a byte from 128 to 255 instead: then its records begin with that byte."""

HOLE_SIZE = 5
"""Size of the smallest HOLE: type and size, which begin every record except a SMALL_HOLE."""
RECORD_SIZE = 21
"""Size of the smallest record of a message: type, size and id, which begin such a record of any type."""
MAX_RECORD = 2**32 - 1

TORN = "torn"
"""Result of :func:`measure` for a record that the end of the file cuts off. Its other strings are kinds of corruption."""

HOLE_HEAD = Struct(">BI")
RECORD_HEAD = Struct(">BI16s")
SMALL_HOLES = bytes([SMALL_HOLE])


def check_header(data: Buffer) -> HeaderState:
    """Check magic and version of a segment of at least 64 bytes. Readers ignore the reserved bytes."""
    if data[:4] != MAGIC:
        return "bad_magic"
    return "ok" if data[4] == VERSION else "bad_version"


def hole_head(size: int) -> bytes:
    """Return the first bytes of a hole of ``size`` bytes. The rest of the hole may have any content."""
    return SMALL_HOLES * size if size < HOLE_SIZE else HOLE_HEAD.pack(HOLE, size)


def measure(data: Buffer, offset: int, after_hole: bool, smallest: Mapping[int, int]) -> int | str:
    """Return the size of the record at ``offset`` (of the whole run, for SMALL_HOLEs), or the reason why there is none.

    ``smallest`` maps each known type except SMALL_HOLE to its minimum size. The tests have the order of the broker's scanner,
    because the order determines the reason for a broken record.
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
