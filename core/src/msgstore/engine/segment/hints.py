"""Hint files: the record list of a sealed segment, next to it, so that a rebuild of the index need not read the segment.

A hint saves time and holds no data: a missing, stale or damaged one is ignored, and a failure to write one is only logged. It
is written only for a segment that a scan would find intact from its header to its end.

A stale hint must never be used:

- It has the size and modification time of its segment. Before it is written, that time is set back by more than the clock
  resolution of any file system. So a later change leaves another time, even in the same instant and at the same size.
- Before the engine changes a segment, it deletes the hint; durably before a compaction.
- The last record of the segment is read: a power loss may keep name, size and time of a file, but not its contents.

The file has columns and a checksum: see ``docs/spec/hints.md``. It may be damaged or forged, so lengths are compared with the
sizes of hint file and segment before anything is allocated, and no record may lie outside the segment.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add, ge
from pathlib import Path
from struct import Struct
from typing import TypeAlias

from msgstore.contract import Columns, RecordError
from msgstore.engine.segment.segment import Segment
from msgstore.files import UNFINISHED, Files
from msgstore.locations import LIMIT

log = logging.getLogger("msgstore.recovery")

SMALLEST = 2**20
"""Smallest segment with a hint, in bytes: a smaller one is scanned in milliseconds."""
DELAY_SECONDS = 2.0
"""Seconds between sealing and the hint: a segment that is emptied before costs none. With 64-byte messages a hint has a
seventh of the size of its segment."""
_PREFIX, _SUFFIX = "msgstore-", ".hint"
_TICK_NS = 2_000_000_000
"""Largest clock resolution of a file system, that of FAT."""
_LARGEST_LOOK = 2**20
"""Largest last record that is read for the check, in bytes."""
_HEADER, _CHECKSUM = Struct(">8sIBBHQQqQQ"), Struct(">I")
_MAGIC, _VERSION = b"msghint\n", 1
_ID = 16
_TYPECODES = {4: "I", 8: "Q"}

Records: TypeAlias = "tuple[bytes | bytearray, array[int] | int, array[int]]"
"""(ids, offsets, sizes) of records in order of their offsets; the first offset, if there are no gaps between them."""


class InvalidHint(ValueError):
    """Raised for bytes that are not an intact hint of this segment in its present state."""


def hint_name(segment: str) -> str:
    """Return the name of the hint file of a segment."""
    return f"{_PREFIX}{segment}{_SUFFIX}"


class Hints:
    """Hint files of one directory. Callers hold the flush lock, or have pinned the segment, or the store is not open yet. No
    method raises OSError."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self.writes = False
        """True if new hints are written. Stale ones are deleted in any case."""
        self._there: dict[str, int] = {}
        """Size of each hint file in the directory, by name."""
        self._current: Segment | None = None
        """Segment whose records are being collected, from its header on."""
        self._ids = bytearray()
        self._sizes = array("Q")
        self.unwritten: dict[Segment, tuple[Records, float]] = {}
        """(records, time of sealing), the oldest first: hints that are not written yet."""

    def add(self, segment: Segment, offset: int, ids: Sequence[bytes], sizes: Sequence[int]) -> None:
        """Collect records that were appended at ``offset``. Those of a segment that an earlier opening began are not known."""
        if not self.writes or (segment is not self._current and offset != segment.header_bytes):
            return
        if segment is not self._current:
            self._current, self._ids, self._sizes = segment, bytearray(), array("Q")
        self._ids += b"".join(ids)
        self._sizes += array("Q", sizes)

    def finish(self, segment: Segment) -> None:
        """Note that a segment was sealed. A later ``save`` writes its hint if the collected records are all that it has."""
        if segment is self._current:
            if segment.header_bytes + sum(self._sizes) == segment.size:
                self.unwritten[segment] = (self._ids, segment.header_bytes, self._sizes), time.monotonic()
            self._current = None

    def save(self, *, everything: bool = False) -> list[Segment]:
        """Write the hints of segments sealed DELAY_SECONDS ago, or all. Return the segments whose time was changed.

        A segment with less than half of its bytes alive gets no hint: it will soon be collected.
        """
        ripe = time.monotonic() - DELAY_SECONDS
        changed = []
        for segment in [segment for segment, (_, since) in self.unwritten.items() if everything or since <= ripe]:
            records, _ = self.unwritten.pop(segment)
            if not segment.quarantined and 2 * segment.live_bytes >= segment.size - segment.header_bytes:
                before = segment.sealed_mtime_ns
                self.write_one(segment, records)
                if segment.sealed_mtime_ns != before:
                    changed.append(segment)
        return changed

    def write_one(self, segment: Segment, records: Records) -> None:
        """Write the hint of a segment, if all its records are known and it has no damage."""
        name, sealed = hint_name(segment.path.name), segment.sealed_mtime_ns
        if not self.writes or segment.size < SMALLEST or sealed is None:
            return
        try:
            if sealed >= time.time_ns() - _TICK_NS:
                size, segment.sealed_mtime_ns = self._files.set_mtime(segment.path, sealed - _TICK_NS)
                if size != segment.size or segment.sealed_mtime_ns >= sealed:
                    return  # the file has changed, or the file system cannot store the time
            chunks = write_hint(records, segment.path.name, segment.size, segment.sealed_mtime_ns or 0)
            self._there[name] = 0  # the file may exist from here on
            self._files.write_file(self._directory / name, chunks, sync=False)
        except OSError as error:
            what = "%s cannot be written; a rebuild of the index will read the segment instead: %s"
            log.warning(what, self._directory / name, error)

    def rewrite(self, segment: Segment, ids: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Write the hint of a compacted segment: its live records, in any order."""
        order = sorted(range(len(ids)), key=offsets.__getitem__)
        at, length = (array("Q", map(column.__getitem__, order)) for column in (offsets, sizes))
        self.write_one(segment, (b"".join(map(ids.__getitem__, order)), at, length))

    def find(self, segments: Iterable[Segment]) -> None:
        """List the hint files. If hints are written, delete those without a segment."""
        with contextlib.suppress(OSError):
            found = {name: size for name, (size, _) in self._files.list(self._directory).items() if name.startswith(_PREFIX)}
            self._there = {name: size for name, size in found.items() if name.endswith(_SUFFIX)}
            stray = self._there.keys() - {hint_name(segment.path.name) for segment in segments}
            stray |= {name for name in found if name.endswith(f"{_SUFFIX}{UNFINISHED}")}
            for name in stray if self.writes else ():
                self._there.pop(name, None)
                self._files.unlink(self._directory / name)

    def load(self, segment: Segment) -> Columns | None:
        """Return the hint of a segment, or None if it cannot be used. Reads at most twice the size of the segment."""
        name = hint_name(segment.path.name)
        size = self._there.get(name)
        if size is None or segment.sealed_mtime_ns is None:
            return None
        try:
            if size > _HEADER.size + segment.size // _ID * (_ID + 8 + 8) + _CHECKSUM.size:
                raise InvalidHint(f"{size} bytes are too many for a segment of {segment.size}")
            data = self._files.read_file(self._directory / name)
            hint = read_hint(data, segment.path.name, segment.size, segment.sealed_mtime_ns)
            if len(hint) and hint.sizes[-1] <= _LARGEST_LOOK:
                with self._files.closing(self._files.open_read(segment.path)) as fd:
                    record = self._files.pread(fd, hint.sizes[-1], hint.offsets[-1])
                if len(record) != hint.sizes[-1]:
                    raise InvalidHint("its last record is cut off")
                segment.form.format.decode(bytes(hint.ids[-_ID:]), record)
        except (OSError, InvalidHint, RecordError) as error:
            log.info("%s is not used, the segment is read instead: %s", self._directory / name, error)
            return None
        return hint

    def drop(self, segment: Segment, *, lasting: bool = False) -> None:
        """Delete the hint before the segment is changed or deleted. ``lasting``: durably."""
        if segment is self._current:
            self._current = None
        self.unwritten.pop(segment, None)
        name = hint_name(segment.path.name)
        if name in self._there:
            try:
                self._files.unlink(self._directory / name)
                if lasting:
                    self._files.sync_directory(self._directory)
                del self._there[name]
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._directory / name, error)


def write_hint(records: Records, name: str, segment_size: int, mtime_ns: int) -> Iterator[bytes]:
    """Yield the file in chunks, for the segment with this file name, size in bytes, and modification time."""
    ids, offsets, sizes = records
    width = 4 if segment_size < 1 << 32 else 8
    first = offsets if isinstance(offsets, int) else offsets[0] if offsets else 0
    if isinstance(offsets, int) or not offsets or offsets[-1] + sizes[-1] - first == sum(sizes):
        offsets = array("Q")
    size = sizes[0] if sizes and sizes.tobytes() == sizes[:1].tobytes() * len(sizes) else 0
    widths = width if offsets else 0, 0 if size or not sizes else width
    header = _HEADER.pack(_MAGIC, _VERSION, *widths, 0, len(sizes), segment_size, mtime_ns, first, size)
    columns = [column for column, is_there in zip((offsets, sizes), widths, strict=True) if is_there]
    checksum = zlib.crc32(name.encode())
    for chunk in (header, ids, *(_swapped(array(_TYPECODES[width], column)).tobytes() for column in columns)):
        checksum = zlib.crc32(chunk, checksum)
        yield chunk  # type: ignore[misc]  # any buffer will do
    yield _CHECKSUM.pack(checksum)


def read_hint(data: bytes, name: str, segment_size: int, mtime_ns: int) -> Columns:
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
    view = _checked(data, name)
    sizes = _swapped(array(_TYPECODES[size_width], bytes(view[sizes_at:end]))) if size_width else array("Q", [size]) * count
    if count:
        total, smallest = (sum(sizes), min(sizes)) if size_width else (size * count, size)
        if smallest < _ID:
            raise InvalidHint("a record that is smaller than its id")
        if first + total > segment_size or segment_size >= LIMIT:
            raise InvalidHint("records after the end of the segment")
    offsets: array[int] | range
    if offset_width:
        offsets = _swapped(array(_TYPECODES[offset_width], bytes(view[offsets_at:sizes_at])))
        _check_order(offsets, sizes, segment_size)
    elif size_width or not count:
        offsets = array("Q", accumulate(sizes[:-1], initial=first)) if count else array("Q")
    else:  # an array would take a tenth of the time of an opening
        offsets = range(first, first + size * count, size)
    ids = bytearray(view[_HEADER.size : offsets_at])
    return Columns(ids, offsets, sizes, bytearray(count))  # type: ignore[arg-type]  # of ``offsets`` only items are read


def rename_hint(data: bytes, name: str, new_name: str) -> Iterator[bytes]:
    """Yield the same hint for the same segment under a new name. Raises InvalidHint if it is damaged."""
    view = _checked(data, name)
    yield view  # type: ignore[misc]  # any buffer will do
    yield _CHECKSUM.pack(zlib.crc32(view, zlib.crc32(new_name.encode())))


def _checked(data: bytes, name: str) -> memoryview:
    """Return all but the checksum, which has the segment's name in it. Raises InvalidHint if that is wrong."""
    view, checksum = memoryview(data)[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if _CHECKSUM.pack(zlib.crc32(view, zlib.crc32(name.encode()))) != checksum:
        raise InvalidHint("the checksum does not match")
    return view


def _check_order(offsets: array[int], sizes: array[int], segment_size: int) -> None:
    """Raise InvalidHint if records overlap, or lie outside the segment."""
    if not all(map(ge, offsets[1:], map(add, offsets, sizes))):
        raise InvalidHint("records that overlap")
    if offsets and offsets[-1] + sizes[-1] > segment_size:
        raise InvalidHint("records after the end of the segment")


def _swapped(numbers: array[int]) -> array[int]:
    """Convert between the machine's byte order and that of the file."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
