"""One segment of an open store: its file and what the engine knows of it. Errors of files. Erasing. Files open for reading.

Erasing (``erase = true``) overwrites removed messages with zeros before their space is freed. Only whole segments are
overwritten. A segment with live records is first compacted by copy. A deleted segment is renamed, so that no opening reads it;
then it is overwritten, synced and unlinked. After a crash the next opening continues there. Copies that a disk, a file system
or a backup made on its own are not overwritten. Nor is a file with further hard links, as a copy by ``cp -al`` has them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from mmap import mmap
from pathlib import Path
from types import TracebackType

import attrs

from msgstore.contract import BrokenPlugin, SegmentStats, StoreError, StoreIOError
from msgstore.directory import ERASE_SUFFIX, TEMP_SUFFIX, segments_ending
from msgstore.files import Files
from msgstore.plugins.blame import blame
from msgstore.plugins.loader import comes_from_outside
from msgstore.scan import OpenFormat

log = logging.getLogger("msgstore.collection")

_ZEROS = bytes(2**20)


@attrs.define(eq=False)
class Segment:
    """One segment file and what the engine knows of it. Sizes in bytes, of whole records."""

    number: int
    path: Path
    form: OpenFormat
    size: int
    """Where the next record would begin."""
    live_count: int = 0
    live_bytes: int = 0
    appendable: bool = False
    """True if its end is clean and it may go on being written."""
    quarantined: bool = False
    """True if damage was found: it is read as it is, never collected and never deleted."""
    torn: bool = False
    """True if recovery found a write at its end that was cut off."""
    sealed_mtime_ns: int | None = None
    """Modification time of the file after its last write, in nanoseconds; None while the file may still be written."""
    died_since_pin: set[int] | None = None
    """While it is being collected, the locations of its records that have died since that began; else None. Until it is None
    again, it must not be deleted, and no dead record in it may be revived."""
    compacting: bool = False
    """True while its file is rewritten in place: then it may be shorter than ``size``, and its row says so."""
    compacted_live_bytes: int = -1
    """Live bytes after the last collection of the segment: as long as they are the same, there is nothing to gain."""

    @property
    def header_bytes(self) -> int:
        return len(self.form.format.header)

    def stats(self, *, current: bool, size_limit: int = 0) -> SegmentStats:
        return SegmentStats(
            number=self.number,
            file=self.path.name,
            format=self.form.name,
            size=self.size,
            live_count=self.live_count,
            live_bytes=self.live_bytes,
            header_bytes=self.header_bytes,
            current=current,
            quarantined=self.quarantined,
            sealed_at=None if self.sealed_mtime_ns is None else self.sealed_mtime_ns / 1e9,
            size_limit=size_limit,
        )


class io_errors:  # noqa: N801 - used as a function; a generator would cost a flush several microseconds
    """Context manager: an OSError about a file or directory becomes StoreIOError, another exception of a plugin BrokenPlugin,
    and a BrokenPlugin names the file."""

    __slots__ = ("_offset", "_path")

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self._offset = offset

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError) and not comes_from_outside(error):
            raise io_error(self._path, self._offset, error) from error
        if isinstance(error, BrokenPlugin):
            raise BrokenPlugin(f"{self._path}: {error}") from error.__cause__
        if (broken := blame(error)) is not None:
            raise BrokenPlugin(f"{self._path}: {broken}") from error


def io_error(path: Path, offset: int | None, error: OSError) -> StoreIOError:
    where = f"{path}" + (f" at offset {offset}" if offset is not None else "")
    return StoreIOError(
        f"{where}: {error.strerror or error}. Fix the cause (disk space, limits, permissions, hardware) and retry: what is "
        f"on disk stays, and the next flush() writes and confirms the messages that are not confirmed yet."
    )


def damaged_index(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path}: the index is damaged: {what}. Close the store, move the index's files (msgstore-*) away, and open it again: "
        f"it is rebuilt from the segments."
    )


def remove_file(files: Files, path: Path, *, erase: bool) -> None:
    """Unlink a file that no opening reads, if it exists; with ``erase`` overwrite it with zeros first. Raises OSError.

    A file with further hard links is only unlinked (logged): it may be a segment of a copy of the directory.
    """
    if erase:
        with contextlib.suppress(FileNotFoundError), files.closing(files.open_write(path)) as fd:
            if files.identity_and_links(fd)[1] > 1:
                log.warning("%s: is deleted and not erased: it has another hard link, as a copy by cp -al has", path)
            else:
                _overwrite(files, fd)
    files.unlink(path)


def _overwrite(files: Files, fd: int) -> None:
    size, _ = files.size_and_mtime(fd)
    for offset in range(0, size, len(_ZEROS)):
        files.pwrite(fd, memoryview(_ZEROS)[: size - offset], offset)
    files.sync(fd)


def remove_leftovers(files: Files, directory: Path, extensions: Collection[str], *, erase: bool) -> None:
    """Delete what a crash left: unfinished copies, and deleted segments that were not erased yet. Raises OSError."""
    names = files.list(directory)
    for name in segments_ending(names, TEMP_SUFFIX, extensions):
        remove_file(files, directory / name, erase=erase)
    for name in segments_ending(names, ERASE_SUFFIX, extensions):
        remove_file(files, directory / name, erase=True)


MAX_OPEN = 256
"""Descriptors that one store keeps open."""
Decode = Callable[[bytes, bytes], bytes]


class ReadFiles:
    """One instance per open store. Callers of the methods hold the state lock; the attributes are read without it."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.readers: dict[int, tuple[int, Decode]] = {}
        """Segment number to (descriptor, decode): all that a read needs."""
        self.maps: dict[int, tuple[mmap, Decode]] = {}
        """The same for segments that are mapped."""
        self.epoch = 0
        """Increased before anything that an older lookup may point to is overwritten, cut or closed."""

    def open(self, segment: Segment) -> tuple[int, Decode]:
        """Return (descriptor, decode) of a segment. Raises OSError."""
        if segment.number in self.readers:
            return self.readers[segment.number]
        fd = self._files.open_read(segment.path)
        while len(self.readers) >= MAX_OPEN:
            self.close(next(iter(self.readers)))
        self.readers[segment.number] = fd, segment.form.format.decode
        return self.readers[segment.number]

    def map(self, segment: Segment) -> None:
        """Map a segment as far as it is written. What cannot be mapped is left to ``pread``, which reports the reason."""
        if segment.compacting:  # it is about to be truncated
            return
        if segment.number in self.maps and len(self.maps[segment.number][0]) >= segment.size:
            return
        with contextlib.suppress(ValueError, OSError):
            fd, decode = self.open(segment)
            mapped = self._files.map(fd, segment.size)
            self.unmap(segment.number)
            self.maps[segment.number] = mapped, decode

    def unmap(self, number: int) -> None:
        """Close a map before its segment is truncated: reading a map past the end of the file kills the process."""
        if number in self.maps:
            self.maps.pop(number)[0].close()

    def close(self, number: int) -> None:
        """Close the descriptor of a segment, if it is open. Raises OSError."""
        if number in self.readers:
            self.epoch += 1
            self.unmap(number)
            fd, _ = self.readers.pop(number)
            self._files.close(fd)
