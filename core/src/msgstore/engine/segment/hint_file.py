"""Hint file format: the records of one sealed segment as columns, with a checksum. See ``docs/spec/hints.md``.

Pure functions of bytes. The file may be damaged or forged, so lengths are compared with the sizes of hint file and segment
before anything is allocated, and no record may lie outside the segment.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate, repeat
from operator import add, ge
from struct import Struct

import attrs

from msgstore.contract.formats import Columns, split_ids
from msgstore.locations import LIMIT, NUMBER_SHIFT, OFFSET_SHIFT

_HEADER = Struct(">8sIBBHQQqQQ")
_CHECKSUM = Struct(">I")
_MAGIC = b"msghint\n"
_VERSION = 1
_ID = 16
_TYPECODES = {4: "I", 8: "Q"}
_STEP = 1 << OFFSET_SHIFT


class InvalidHint(ValueError):
    """Raised for bytes that are not an intact hint of this segment in its present state."""


@attrs.frozen
class Hint:
    """Records of one segment in order of their offsets."""

    count: int
    ids: bytes | bytearray | memoryview
    """16 bytes per record."""
    first: int
    """Offset of the first record; 0 if there is none."""
    offsets: array[int] | None
    """Offset of each record; None if there are no gaps between them."""
    size: int
    """Size of every record in bytes, if ``sizes`` is None."""
    sizes: array[int] | None
    """Size of each record in bytes; None if all are equal."""

    @classmethod
    def of(cls, columns: Columns) -> Hint:
        """Return the hint of the records of a scan: in order, without copies."""
        return cls.of_columns(columns.ids, columns.offsets, columns.sizes)

    @classmethod
    def of_columns(cls, ids: bytes | bytearray, offsets: array[int], sizes: array[int]) -> Hint:
        """Return the hint of records with these columns, in order of their offsets."""
        hint = cls.of_run(ids, offsets[0] if offsets else 0, sizes)
        run = array("Q", accumulate(sizes, initial=hint.first))
        run.pop()
        return hint if offsets.tobytes() == run.tobytes() else attrs.evolve(hint, offsets=offsets)

    @classmethod
    def of_run(cls, ids: bytes | bytearray, first: int, sizes: array[int]) -> Hint:
        """Return the hint of records without gaps between them."""
        same = sizes.tobytes() == sizes[:1].tobytes() * len(sizes)
        return cls(len(sizes), ids, first, None, sizes[0] if sizes else 0, None if same else sizes)

    def id_list(self) -> list[bytes]:
        """Return the ids as a list."""
        return split_ids(self.ids)

    def locations(self, number: int) -> list[int]:
        """Return the packed locations in segment ``number``. 40 ns each if all sizes are equal, else 120 ns."""
        if not self.count:
            return []
        base = number << NUMBER_SHIFT
        if self.offsets is not None:
            return [base | offset << OFFSET_SHIFT | size for offset, size in zip(self.offsets, self.each_size(), strict=True)]
        first = base | self.first << OFFSET_SHIFT
        if self.sizes is None:
            return list(accumulate(repeat(self.size << OFFSET_SHIFT, self.count - 1), initial=first | self.size))
        begins = accumulate(map(_STEP.__mul__, self.sizes), initial=first)
        return list(map(add, begins, self.sizes))

    def each_size(self) -> array[int]:
        """Return the size of each record."""
        return array("Q", [self.size]) * self.count if self.sizes is None else self.sizes

    def total(self) -> int:
        """Return the size of all records together."""
        return self.size * self.count if self.sizes is None else sum(self.sizes)

    def last(self) -> tuple[bytes, int, int]:
        """Return (id, offset, size) of the last record. There must be one."""
        size = self.size if self.sizes is None else self.sizes[-1]
        offset = self.first + self.total() - size if self.offsets is None else self.offsets[-1]
        return bytes(self.ids[_ID * (self.count - 1) : _ID * self.count]), offset, size


def largest(segment_size: int) -> int:
    """Return the maximal size of the hint of a segment, whose records have 16 bytes at least."""
    return _HEADER.size + segment_size // _ID * (_ID + 8 + 8) + _CHECKSUM.size


def write(hint: Hint, name: str, segment_size: int, mtime_ns: int) -> Iterator[bytes]:
    """Yield the file in chunks, for the segment with this file name, size in bytes, and modification time."""
    width = 4 if segment_size < 1 << 32 else 8
    offset_width, size_width = 0 if hint.offsets is None else width, 0 if hint.sizes is None else width
    header = _HEADER.pack(
        _MAGIC, _VERSION, offset_width, size_width, 0, hint.count, segment_size, mtime_ns, hint.first,
        hint.size if hint.sizes is None else 0,
    )  # fmt: skip
    checksum = zlib.crc32(name.encode())
    for chunk in (header, hint.ids, _column(hint.offsets, width), _column(hint.sizes, width)):
        checksum = zlib.crc32(chunk, checksum)
        yield chunk  # type: ignore[misc]  # any buffer will do
    yield _CHECKSUM.pack(checksum)


def read(data: bytes, name: str, segment_size: int, mtime_ns: int) -> Hint:
    """Parse a hint. Raises InvalidHint unless it belongs to this segment. Allocates no more than the size of ``data``."""
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
    offsets = _array(view[offsets_at:sizes_at], offset_width) if offset_width else None
    sizes = _array(view[sizes_at:end], size_width) if size_width else None
    hint = Hint(count, view[_HEADER.size : offsets_at], first, offsets, size, sizes)
    _check(hint, segment_size)
    return hint


def renamed(data: bytes, name: str, new_name: str) -> Iterator[bytes]:
    """Yield the same hint for the same segment under a new name. Raises InvalidHint if it is damaged."""
    end = len(data) - _CHECKSUM.size
    view = memoryview(data)[: max(end, 0)]
    if end < 0 or zlib.crc32(view, zlib.crc32(name.encode())) != _CHECKSUM.unpack_from(data, end)[0]:
        raise InvalidHint("the checksum does not match")
    yield view  # type: ignore[misc]  # any buffer will do
    yield _CHECKSUM.pack(zlib.crc32(view, zlib.crc32(new_name.encode())))


def _check(hint: Hint, segment_size: int) -> None:
    """Raise InvalidHint if records overlap, or lie outside the segment."""
    if segment_size >= LIMIT:
        raise InvalidHint("the segment is too large")
    if not hint.count:
        return
    if (hint.size if hint.sizes is None else min(hint.sizes)) < _ID:
        raise InvalidHint("a record that is smaller than its id")
    if hint.offsets is None:
        end = hint.first + hint.total()
    else:
        sizes = hint.each_size()
        if not all(map(ge, hint.offsets[1:], map(add, hint.offsets, sizes))):
            raise InvalidHint("records that overlap")
        end = hint.offsets[-1] + sizes[-1]
    if end > segment_size:
        raise InvalidHint("records after the end of the segment")


def _column(numbers: array[int] | None, width: int) -> bytes:
    if numbers is None:
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
