"""Locations: where a record is, packed into one integer ``number << 80 | offset << 40 | size``.

Number is the segment's, size is that of the whole record. Offset and size are below 1 TiB, numbers below 2**64. An object
per entry would cost 50 % more memory at five million entries, and a garbage-collection pause of half a second.
"""

from __future__ import annotations

OFFSET_SHIFT = 40
NUMBER_SHIFT = 80
MASK = (1 << 40) - 1
LIMIT = 1 << 40
"""Offsets and sizes are below this."""


def pack_location(number: int, offset: int, size: int) -> int:
    return number << NUMBER_SHIFT | offset << OFFSET_SHIFT | size


def unpack_location(location: int) -> tuple[int, int, int]:
    """Return (segment number, offset, size)."""
    return location >> NUMBER_SHIFT, location >> OFFSET_SHIFT & MASK, location & MASK
