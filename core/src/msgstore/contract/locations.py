"""Where a record is, in one integer: segment number, offset and size of the whole record.

No object an entry: at five million entries a tuple costs half as much memory again, an object a garbage-collection pause
of half a second. The integer is ``number << 80 | offset << 40 | size``: offsets and sizes below 1 TiB, numbers below 2**64.
"""

from __future__ import annotations

OFFSET_SHIFT = 40
NUMBER_SHIFT = 80
MASK = (1 << 40) - 1
LIMIT = 1 << 40
"""Offsets and sizes are below this."""


MAX_REFERENCES = (1 << 48) - 1
"""An index need not count higher."""


def pack(number: int, offset: int, size: int) -> int:
    return number << NUMBER_SHIFT | offset << OFFSET_SHIFT | size


def unpack(location: int) -> tuple[int, int, int]:
    """(segment number, offset, size)."""
    return location >> NUMBER_SHIFT, location >> OFFSET_SHIFT & MASK, location & MASK
