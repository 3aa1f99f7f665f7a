"""Locations: where a record is, packed into one integer ``number << 80 | offset << 40 | size``.

Number is the segment's, size is that of the whole record. Offset and size are below 1 TiB, numbers below 2**64. An object
per entry would cost 50 % more memory at five million entries, and a garbage-collection pause of half a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, repeat

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


def pack_locations(number: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the locations of records of one segment, in order of their offsets: columns that do not overlap.

    120 ns each; 40 ns in an array of equal sizes without gaps.
    """
    base = number << NUMBER_SHIFT
    if isinstance(sizes, array) and sizes and sizes.tobytes() == sizes[:1].tobytes() * len(sizes):
        first, size, more = offsets[0], sizes[0], len(sizes) - 1
        if offsets[-1] == first + size * more:
            return list(accumulate(repeat(size << OFFSET_SHIFT, more), initial=base | first << OFFSET_SHIFT | size))
    return [base | offset << OFFSET_SHIFT | size for offset, size in zip(offsets, sizes, strict=True)]
