"""Hint file format: the records of one sealed segment as columns, with a checksum. See ``docs/spec/hints.md``.

Pure functions of bytes. The file may be damaged or forged, so lengths are compared with the sizes of hint file and segment
before anything is allocated, and no record may lie outside the segment.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate
from operator import add, ge
from struct import Struct
from typing import TypeAlias

from msgstore.contract import Columns
from msgstore.locations import LIMIT

_HEADER = Struct(">8sIBBHQQqQQ")
_CHECKSUM = Struct(">I")
_MAGIC = b"msghint\n"
_VERSION = 1
_ID = 16
_TYPECODES = {4: "I", 8: "Q"}


Records: TypeAlias = "tuple[bytes | bytearray, array[int] | int, array[int]]"
"""(ids, offsets, sizes) of records in order of their offsets; the first offset, if there are no gaps between them."""


class InvalidHint(ValueError):
    """Raised for bytes that are not an intact hint of this segment in its present state."""


def largest(segment_size: int) -> int:
    """Return the maximal size of the hint of a segment, whose records have 16 bytes at least."""
    return _HEADER.size + segment_size // _ID * (_ID + 8 + 8) + _CHECKSUM.size


def write(columns: Records, name: str, segment_size: int, mtime_ns: int) -> Iterator[bytes]:
    """Yield the file in chunks, for the segment with this file name, size in bytes, and modification time."""
    ids, offsets, sizes = columns
    width = 4 if segment_size < 1 << 32 else 8
    first = offsets if isinstance(offsets, int) else offsets[0] if offsets else 0
    if isinstance(offsets, int) or not offsets or offsets[-1] + sizes[-1] - first == sum(sizes):
        offsets = array("Q")
    size = sizes[0] if sizes and sizes.tobytes() == sizes[:1].tobytes() * len(sizes) else 0
    offset_width, size_width = width if offsets else 0, 0 if size or not sizes else width
    header = _HEADER.pack(
        _MAGIC, _VERSION, offset_width, size_width, 0, len(sizes), segment_size, mtime_ns, first, size
    )  # fmt: skip
    checksum = zlib.crc32(name.encode())
    for chunk in (header, ids, _column(offsets, offset_width), _column(sizes, size_width)):
        checksum = zlib.crc32(chunk, checksum)
        yield chunk  # type: ignore[misc]  # any buffer will do
    yield _CHECKSUM.pack(checksum)


def read(data: bytes, name: str, segment_size: int, mtime_ns: int) -> Columns:
    """Parse a hint. Raises InvalidHint unless it belongs to this segment. Allocates at most twice the size of ``data``."""
    if len(data) < _HEADER.size + _CHECKSUM.size:
        raise InvalidHint(f"{len(data)} bytes are too few")
    magic, version, offset_width, size_width, zero, count, of_size, of_time, first, size = _HEADER.unpack_from(data)
    if (magic, version, zero) != (_MAGIC, _VERSION, 0):
        raise InvalidHint(f"not a hint of version {_VERSION}: it begins with {data[:12].hex()}")
    if (of_size, of_time) != (segment_size, mtime_ns):
        raise InvalidHint("the segment has changed since")
    if not {offset_width, size_width} <= {0, 4, 8}:
        raise InvalidHint(f"columns of {offset_width} and {size_width} bytes")
    offsets_at = _HEADER.size + _ID * count
    sizes_at = offsets_at + offset_width * count
    end = sizes_at + size_width * count
    if end + _CHECKSUM.size != len(data):
        raise InvalidHint(f"{len(data)} bytes where its header says {end + _CHECKSUM.size}")
    view = memoryview(data)
    if zlib.crc32(view[:end], zlib.crc32(name.encode())) != _CHECKSUM.unpack_from(data, end)[0]:
        raise InvalidHint("the checksum does not match")
    sizes = _array(view[sizes_at:end], size_width) if size_width else array("Q", [size]) * count
    if count:
        total, smallest = (sum(sizes), min(sizes)) if size_width else (size * count, size)
        if smallest < _ID:
            raise InvalidHint("a record that is smaller than its id")
        if first + total > segment_size or segment_size >= LIMIT:
            raise InvalidHint("records after the end of the segment")
    if offset_width:
        offsets = _array(view[offsets_at:sizes_at], offset_width)
        _check(offsets, sizes, segment_size)
    else:
        offsets = array("Q", accumulate(sizes[:-1], initial=first)) if count else array("Q")
    return Columns(bytearray(view[_HEADER.size : offsets_at]), offsets, sizes, bytearray(count))


def renamed(data: bytes, name: str, new_name: str) -> Iterator[bytes]:
    """Yield the same hint for the same segment under a new name. Raises InvalidHint if it is damaged."""
    end = len(data) - _CHECKSUM.size
    view = memoryview(data)[: max(end, 0)]
    if end < 0 or zlib.crc32(view, zlib.crc32(name.encode())) != _CHECKSUM.unpack_from(data, end)[0]:
        raise InvalidHint("the checksum does not match")
    yield view  # type: ignore[misc]  # any buffer will do
    yield _CHECKSUM.pack(zlib.crc32(view, zlib.crc32(new_name.encode())))


def _check(offsets: array[int], sizes: array[int], segment_size: int) -> None:
    """Raise InvalidHint if records overlap, or lie outside the segment."""
    if not all(map(ge, offsets[1:], map(add, offsets, sizes))):
        raise InvalidHint("records that overlap")
    if offsets and offsets[-1] + sizes[-1] > segment_size:
        raise InvalidHint("records after the end of the segment")


def _column(numbers: array[int], width: int) -> bytes:
    if not width:
        return b""
    column = array(_TYPECODES[width], numbers)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()


def _array(column: memoryview, width: int) -> array[int]:
    numbers = array(_TYPECODES[width])
    numbers.frombytes(column)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
