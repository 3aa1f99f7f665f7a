"""Segments: all segments of one open store, and the writing end of the current one.

Callers of methods that write hold the flush lock; callers of methods that open or close descriptors for reading hold the state
lock. Errors of the operating system become StoreIOError with file and offset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from msgstore.contract import StoreIOError
from msgstore.contract.events import SegmentRolledEvent
from msgstore.directory import ERASE_SUFFIX, SegmentFile
from msgstore.engine.events import Telemetry
from msgstore.engine.segment.hints import Hints
from msgstore.engine.segment.segment import ReadFiles, Segment, damaged_index, io_error, io_errors
from msgstore.files import Files
from msgstore.scan import FormatSet, OpenFormat

Sync = Literal["never", "each append", "later"]
"""Time at which appended records are synced, with the durability ``os``, ``fsync`` and ``fsync_every``. ``later``: by the next
``sync_written``."""


class Segments:
    """One instance per open store."""

    def __init__(self, directory: Path, files: Files, formats: FormatSet, *, sync: Sync = "never") -> None:
        """``sync`` says when appended records are synced."""
        self.directory = directory
        self.files = files
        self.formats = formats
        self.hints = Hints(directory, files)
        self.telemetry = Telemetry(directory)
        self.by_number: dict[int, Segment] = {}
        self.read_files = ReadFiles(files)
        self.current: Segment | None = None
        """Segment that receives new records."""
        self.place: tuple[int, int] | None = None
        """Identity of the locked directory; None if nothing is written."""
        self.unwritable: list[Segment] = []
        """Segments with a torn write after their end that could not be cut, so that their file size is not known."""
        self.erase = False
        """True if deleted segments are renamed, and overwritten by the collector before they are unlinked."""
        self.pending_erase: list[Path] = []
        """Paths of deleted segments that still have to be overwritten with zeros and unlinked."""
        self.when_synced = sync
        self.is_durable = sync != "never"
        """True if files must survive a power loss."""
        self.must_check_files = False
        """True if the next flush must call ``check_files``: it has work, or something was written since the last call."""
        self._next_number = 0
        """Never the number of a segment that existed since the opening."""
        self._current_fd: int | None = None
        """Descriptor of the current segment."""
        self._current_identity: tuple[int, int] | None = None
        """Identity of the file of the current segment."""
        self.unsynced: dict[int, Segment] = {}
        """Segments that ``sync_written`` has to sync: with ``sync = "later"`` those that were appended to; in an opening those
        that it has read."""

    def __iter__(self) -> Iterator[Segment]:
        """In number order."""
        return iter([self.by_number[number] for number in sorted(self.by_number)])

    def add_found(self, found: SegmentFile) -> Segment:
        """Add a segment file that the opening has found."""
        form = self.formats.by_extension(found.extension)
        segment = Segment(found.number, found.path, form, found.size, sealed_mtime_ns=found.mtime_ns)
        self.by_number[found.number] = segment
        self._next_number = max(self._next_number, found.number + 1)
        return segment

    def reserve(self) -> int:
        """Return a new segment number."""
        self._next_number += 1
        return self._next_number - 1

    def get(self, number: int) -> Segment:
        """Return a segment. Raises StoreError if there is none: then the index is damaged."""
        try:
            return self.by_number[number]
        except KeyError:
            raise damaged_index(self.directory, f"it points to segment {number}, which does not exist") from None

    # -- the writing end --------------------------------------------------------------------------------------------------

    def roll(self, form: OpenFormat) -> Segment:
        """Seal the current segment and create the next one, with its header. Caller holds the flush lock.

        If that fails, no file of the new number is left; if the file cannot be deleted, it stays as an empty segment.
        """
        self.check_directory()  # or the file would belong to another store
        self.seal_current()
        segment = Segment(self._next_number, self.directory / f"{self._next_number}{form.descriptor.extension}", form, 0)
        fd: int | None = None
        with self.errors(segment):
            try:
                fd = self.files.create(segment.path)
                identity = self.files.identity(fd)
                self.files.pwrite(fd, form.format.header, 0)
                if self.when_synced == "each append":
                    self.files.sync(fd)
                    self.files.sync_directory(self.directory)
            except BaseException as error:  # an interrupt, too: the number is used again
                if fd is None and isinstance(error, OSError):
                    raise  # nothing was created
                with contextlib.suppress(OSError):
                    if fd is not None:
                        self.files.close(fd)
                try:
                    self.files.unlink(segment.path)
                except OSError:
                    self.by_number[self.reserve()] = segment
                    self.unwritable.append(segment)
                raise
        segment.size, segment.appendable = len(form.format.header), True
        self._current_fd, self._current_identity = fd, identity
        self.by_number[self.reserve()] = self.current = segment
        self.telemetry.note(SegmentRolledEvent, file=segment.path.name, format=form.name)
        return segment

    def resume(self, segment: Segment) -> None:
        """Continue a segment that the opening has found."""
        with self.errors(segment):
            fd = self.files.open_write(segment.path)
            try:
                self._current_identity = self.files.identity(fd)
            except BaseException:
                self.files.close(fd)
                raise
        self._current_fd, self.current = fd, segment
        segment.sealed_mtime_ns = None

    def append(self, data: bytes | memoryview) -> None:
        """Write whole records at the end of the current segment. Caller holds the flush lock. Raises StoreIOError.

        After a failed write the file is truncated to its old size. If that fails too, the segment is written no more.
        """
        segment, fd = self.current, self._current_fd
        assert segment is not None
        assert fd is not None
        self.must_check_files = True
        with self.errors(segment, segment.size):
            try:
                self.files.pwrite(fd, data, segment.size)
                if self.when_synced == "each append":
                    self.files.sync(fd)
                elif self.when_synced == "later":
                    self.unsynced[segment.number] = segment
            except BaseException:  # an interrupt, too: an opening would find what it leaves after the end
                try:
                    self.files.truncate(fd, segment.size)
                except OSError:
                    segment.appendable = False
                    self.unwritable.append(segment)
                    with contextlib.suppress(StoreIOError):
                        self.seal_current()
                raise
        segment.size += len(data)

    def seal_current(self) -> None:
        """Close the current segment for writing; there is none until the next ``roll``. Caller holds the flush lock.

        The real size of unwritable segments is noted, too. A failed write may have left whole records after the known size.
        They were written again elsewhere, and the next opening must not take them for new ones. Raises StoreIOError.
        """
        segment, fd = self.current, self._current_fd
        self.current = self._current_fd = None  # first: a descriptor whose close failed is closed all the same
        if segment is not None and fd is not None:
            self._measure(segment, fd)
            self.hints.finish(segment)
        while self.unwritable:
            with self.errors(self.unwritable[-1]):
                fd = self.files.open_read(self.unwritable[-1].path)
            self._measure(self.unwritable[-1], fd)
            self.unwritable.pop()

    def _measure(self, segment: Segment, fd: int) -> None:
        """Note size and time of a file that is not written any more, and close it."""
        with self.errors(segment), self.files.closing(fd):
            segment.size, segment.sealed_mtime_ns = self.files.size_and_mtime(fd)

    # -- checks and syncs -------------------------------------------------------------------------------------------------

    def check_directory(self) -> None:
        """Raise StoreIOError if the path does not lead to the locked directory any more."""
        if self.place is not None and self._identity_and_links(self.directory)[0] != self.place:
            hint = "" if self.directory.is_absolute() else f" This path is relative, and the process is in {Path.cwd()} now."
            raise StoreIOError(
                f"{self.directory}: was moved, deleted or replaced while the store was open. Nothing more is written or "
                f"confirmed: move it back and flush again, or call abandon() and open the store where it is.{hint}"
            )

    def check_current(self) -> None:
        """Raise StoreIOError if the file of the current segment is not in the directory any more."""
        segment = self.current
        if segment is not None and self._identity_and_links(segment.path)[0] != self._current_identity:
            raise StoreIOError(
                f"{segment.path}: was moved, deleted or replaced while it was being written. Nothing in it is confirmed any "
                "more: put it back and flush again, or call abandon(), open the store again, and repeat what was not confirmed."
            )

    def check_files(self) -> None:
        """Check the directory and the current segment.

        A segment with one hard link needs one system call: no copy of the directory (``cp -al``) can have the same file.
        """
        segment = self.current
        if segment is None or self._identity_and_links(segment.path) != (self._current_identity, 1):
            self.check_directory()
            self.check_current()
        self.must_check_files = False

    def _identity_and_links(self, path: Path) -> tuple[tuple[int, int] | None, int]:
        try:
            return self.files.identity_and_links(path)
        except (FileNotFoundError, NotADirectoryError):
            return None, 0
        except OSError as error:
            raise io_error(path, None, error) from error

    def sync_found(self, names: Container[str]) -> None:
        """Sync the segments of these names, which another process wrote, and the directory. Called before their records are
        used."""
        self.unsynced |= {segment.number: segment for segment in self if segment.path.name in names}
        if self.unsynced:
            self.sync_written()
        else:
            self.sync_directory()

    def sync_written(self) -> None:
        """Sync the segments in ``unsynced``, names included. Caller holds the flush lock."""
        if self.unsynced:
            for number, segment in list(self.unsynced.items()):
                if number in self.by_number:
                    with self.errors(segment), self.files.closing(self.files.open_read(segment.path)) as fd:
                        self.files.sync(fd)
            self.sync_directory()
            self.unsynced.clear()

    def sync_directory(self) -> None:
        """Make new and deleted names durable."""
        with io_errors(self.directory):
            self.files.sync_directory(self.directory)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def delete(self, segment: Segment, state_lock: AbstractContextManager[object]) -> None:
        """Unlink a segment without reading it. Caller holds the flush lock, not the state lock, and reports the deletion after
        the last one of several: an observer that wakes in between would take the interpreter lock for each."""
        self.hints.drop(segment)
        with self.errors(segment):
            if self.erase:
                target = segment.path.with_name(segment.path.name + ERASE_SUFFIX)
                with contextlib.suppress(FileNotFoundError):  # as for ``unlink``
                    self.files.replace(segment.path, target)
                    self.pending_erase.append(target)
            else:
                self.files.unlink(segment.path)
        with state_lock, self.errors(segment):
            self.read_files.close(segment.number)
            self.by_number.pop(segment.number, None)
        if segment in self.unwritable:
            self.unwritable.remove(segment)

    def close(self) -> None:
        """Close every descriptor, also those after one whose close fails."""
        self.unwritable.clear()
        with contextlib.ExitStack() as stack:
            for number in list(self.read_files.readers):
                stack.callback(self._close_reader, number)
            stack.callback(self.seal_current)

    def _close_reader(self, number: int) -> None:
        with self.errors(self.by_number[number]):
            self.read_files.close(number)

    def errors(self, segment: Segment, offset: int | None = None) -> io_errors:
        """Return the context in which an OSError names this segment and offset."""
        return io_errors(segment.path, offset)
