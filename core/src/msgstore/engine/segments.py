"""The segments of one open store: their files, their statistics, and the descriptors that are open on them.

What writes is called by whoever holds ``Ledger.flushing``; what opens descriptors for reading, or closes them, under the
store's lock. Errors of the operating system become StoreIOError with store, file and offset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from mmap import mmap
from pathlib import Path
from types import TracebackType

import attrs

from msgstore.contract import BrokenPlugin, SegmentStats, StoreError, StoreIOError
from msgstore.directory import DOOMED, UNNAMED, SegmentFile
from msgstore.engine.happenings import Happenings
from msgstore.engine.hints import Hints
from msgstore.files import Files
from msgstore.scan import FormatSet, OpenFormat

MAX_OPEN = 256
"""Descriptors that one store keeps open; the least recently opened one is closed first."""


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
    """The file's time when it was last known not to change any more; None while it may."""
    died: set[int] | None = None
    """While it is being collected, the locations of the records in it that have died since that began; else None."""
    compacting: bool = False
    """True while its file is rewritten in place: then it may be shorter than ``size``, and its row says so."""
    barren: int = -1
    """Its live bytes when collection last found nothing to gain from it."""

    @property
    def collecting(self) -> bool:
        """True while it must not be deleted, and no dead record in it may be revived."""
        return self.died is not None

    @property
    def named(self) -> bool:
        """False for copies that are not all on disk yet."""
        return self.path.suffix != UNNAMED

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


class Segments:
    """All segments of a store, by number."""

    def __init__(self, directory: Path, files: Files, formats: FormatSet, *, sync: bool) -> None:
        self.directory = directory
        self.files = files
        self.formats = formats
        self.sync = sync
        self.hints = Hints(directory, files)
        self.happenings = Happenings(directory)
        self.by_number: dict[int, Segment] = {}
        self._next_number = 0
        """Never one that was in use since the store was opened: what is known of a deleted segment must not meet another."""
        self.current: Segment | None = None
        self.readers: dict[int, tuple[int, Callable[[bytes, bytes], bytes]]] = {}
        """Segment number to (descriptor, decode): all that a read needs. Read without the lock."""
        self.maps: dict[int, tuple[mmap, Callable[[bytes, bytes], bytes]]] = {}
        """As ``readers``, of the segments that are mapped."""
        self.epoch = 0
        """Goes up before anything that an older look-up may point to is overwritten, cut or closed."""
        self._writer: int | None = None
        """The descriptor of the current segment."""
        self.place: tuple[int, int] | None = None
        """Identity of the directory that is locked; None where nothing is written."""
        self._written: tuple[int, int] | None = None
        """Identity of the current segment's file."""
        self.given_up: list[Segment] = []
        """Segments with a torn write behind their end that could not be cut off, and whose size is not known yet."""
        self.erase = False
        """Deleted segments only lose their names, and are overwritten by the collector."""
        self.doomed: list[Path] = []
        """Those."""
        self.durable = sync
        """Whether what is on disk must be there after a power loss: at once, or ``sync_later``."""
        self.sync_later = False
        """What is appended is not synced at once, but by ``sync_written``."""
        self._unsynced: dict[int, Segment] = {}
        """What was appended to since the last of these, by number."""

    def __iter__(self) -> Iterator[Segment]:
        """In number order."""
        return iter([self.by_number[number] for number in sorted(self.by_number)])

    def add_found(self, found: SegmentFile) -> Segment:
        form = self.formats.by_extension(found.extension)
        segment = Segment(found.number, found.path, form, found.size, sealed_mtime_ns=found.mtime_ns)
        self.by_number[found.number] = segment
        self._next_number = max(self._next_number, found.number + 1)
        return segment

    def reserve(self) -> int:
        """A number of its own for a segment that is not among these yet."""
        self._next_number += 1
        return self._next_number - 1

    def get(self, number: int) -> Segment:
        """Raises StoreError if there is none: then the index speaks of a segment that is not there."""
        try:
            return self.by_number[number]
        except KeyError:
            raise StoreError(
                f"{self.directory}: the index is damaged: it speaks of segment {number}, which is not there. Close the store, "
                f"move the index's files (msgstore-*) away, and open it again: it is rebuilt from the segments."
            ) from None

    def reader(self, number: int) -> tuple[int, Callable[[bytes, bytes], bytes]]:
        """(descriptor, decode) of a segment; opens it if need be."""
        if number in self.readers:
            return self.readers[number]
        segment = self.get(number)
        with self.errors(segment):
            fd = self.files.open_read(segment.path)
        while len(self.readers) >= MAX_OPEN:
            self._close_reader(next(iter(self.readers)))
        self.readers[number] = fd, segment.form.format.decode
        return self.readers[number]

    def map(self, number: int) -> None:
        """Map a segment as far as it is written. What cannot be mapped is left to ``pread``, which tells why."""
        fd, decode = self.reader(number)
        segment = self.by_number[number]
        if segment.compacting:  # it is about to be cut
            return
        if number in self.maps and len(self.maps[number][0]) >= segment.size:
            return
        with contextlib.suppress(ValueError, OSError):
            mapped = self.files.map(fd, segment.size)
            self.unmap(number)
            self.maps[number] = mapped, decode

    def unmap(self, number: int) -> None:
        """Before a segment is cut: to read a mapping behind the file's end would kill the process. Readers begin again."""
        if number in self.maps:
            self.maps.pop(number)[0].close()

    def roll(self, form: OpenFormat) -> Segment:
        """Begin a new current segment: the next number, its header written. The last one is sealed.

        If that fails no file of the number is left; if not even it can be deleted, it stays as an empty segment.
        """
        self.check_directory()  # or the file would be one of another store's
        self.seal_current()
        number = self._next_number
        path = self.directory / f"{number}{form.descriptor.extension}"
        segment = Segment(number, path, form, 0, appendable=True)
        with self.errors(segment):
            fd = self._create(path)
            try:
                written = self.files.identity(fd)
                self.files.pwrite(fd, form.format.header, 0)
                if self.sync:
                    self.files.sync(fd)
                    self.files.sync_directory(self.directory)
            except BaseException:  # an interrupt, too: the number is tried again
                with contextlib.suppress(OSError):
                    self.files.close(fd)
                try:
                    self.files.unlink(path)
                except OSError:
                    segment.appendable = False
                    self._next_number = number + 1
                    self.by_number[number] = segment
                    self.given_up.append(segment)
                raise
        segment.size = len(form.format.header)
        self._next_number = number + 1
        self._writer, self._written = fd, written
        self.by_number[number] = self.current = segment
        self.happenings.rolled(path.name, form.name)
        return segment

    def _create(self, path: Path) -> int:
        try:
            return self.files.create(path)
        except OSError:
            raise
        except BaseException:  # interrupted behind the call: nobody else makes files of this name
            with contextlib.suppress(OSError):
                self.files.unlink(path)
            raise

    def resume(self, segment: Segment) -> None:
        """Go on writing a segment that was found."""
        self.hints.resume(segment)
        with self.errors(segment):
            fd = self.files.open_write(segment.path)
            try:
                self._written = self.files.identity(fd)
            except BaseException:
                self.files.close(fd)
                raise
        self._writer = fd
        self.current = segment
        segment.sealed_mtime_ns = None

    def seal_current(self) -> None:
        """The current segment will not be written any more; there is none until the next ``roll``.

        Segments that were given up are measured, too: behind what the index knows of them there may be records that were
        written once more elsewhere, and removed there. They must not be taken for new ones at the next start.
        """
        segment, fd = self.current, self._writer
        self.current = self._writer = None  # first: a descriptor whose close failed is gone all the same
        if segment is not None and fd is not None:
            with self.errors(segment):
                try:
                    segment.size, segment.sealed_mtime_ns = self.files.size_and_mtime(fd)
                finally:
                    self.files.close(fd)
            self.hints.finish(segment)
        while self.given_up:
            self._measure(self.given_up[-1])
            self.given_up.pop()

    def _measure(self, segment: Segment) -> None:
        with self.errors(segment):
            fd = self.files.open_read(segment.path)
            try:
                segment.size, segment.sealed_mtime_ns = self.files.size_and_mtime(fd)
            finally:
                self.files.close(fd)

    def append(self, data: bytes | memoryview) -> None:
        """Write whole records behind the current segment's end. If that fails, the end is where it was.

        What a failed write may have left behind the end is cut off; if that fails too, the segment is given up for writing.
        """
        segment, fd = self.current, self._writer
        assert segment is not None
        assert fd is not None
        with self.errors(segment, segment.size):
            try:
                self.files.pwrite(fd, data, segment.size)
                if self.sync:
                    self.files.sync(fd)
                elif self.sync_later:
                    self._unsynced[segment.number] = segment
            except BaseException:  # an interrupt, too: what it leaves behind the end would be found by a start
                try:
                    self.files.truncate(fd, segment.size)
                except OSError:  # what was torn off stays behind the end: the segment is given up for writing
                    segment.appendable = False
                    self.given_up.append(segment)
                    with contextlib.suppress(StoreIOError):
                        self.seal_current()
                raise
        segment.size += len(data)

    def check_directory(self) -> None:
        """Raises StoreIOError if the path does not lead to the locked directory any more: what is there is another's."""
        if self.place is not None and self._identity(self.directory) != self.place:
            hint = "" if self.directory.is_absolute() else f" This path is relative, and the process is in {Path.cwd()} now."
            raise StoreIOError(
                f"{self.directory}: was moved, deleted or replaced while the store was open. Nothing more is written or "
                f"confirmed: move it back and flush again, or call abandon() and open the store where it is.{hint}"
            )

    def check_current(self) -> None:
        """Raises StoreIOError if the current segment's file is not in the directory any more. With ``Ledger.flushing``."""
        segment = self.current
        if segment is not None and self._identity(segment.path) != self._written:
            raise StoreIOError(
                f"{segment.path}: was moved, deleted or replaced while it was being written. Nothing in it is confirmed any "
                "more: put it back and flush again, or call abandon(), open the store again, and repeat what was not confirmed."
            )

    def check_files(self) -> None:
        """Check the directory and the current segment. If the segment has one hard link, one look at its path shows both: no
        copy of the directory (``cp -al``) can have the same file."""
        segment = self.current
        if segment is None or self._identity_and_links(segment.path) != (self._written, 1):
            self.check_directory()
            self.check_current()

    def _identity(self, path: Path) -> tuple[int, int] | None:
        return self._identity_and_links(path)[0]

    def _identity_and_links(self, path: Path) -> tuple[tuple[int, int] | None, int]:
        try:
            return self.files.identity_and_links(path)
        except (FileNotFoundError, NotADirectoryError):
            return None, 0
        except OSError as error:
            raise io_error(path, None, error) from error

    def sync_written(self) -> None:
        """Where syncs come ``sync_later``: everything that was appended is on disk when it returns, names included."""
        if self._unsynced:
            for number, segment in list(self._unsynced.items()):
                if number in self.by_number:
                    with self.errors(segment):
                        fd = self.files.open_read(segment.path)
                        try:
                            self.files.sync(fd)
                        finally:
                            self.files.close(fd)
            self.sync_directory()
            self._unsynced.clear()

    @property
    def unsynced(self) -> bool:
        return bool(self._unsynced)

    def delete(self, segment: Segment, lock: AbstractContextManager[object]) -> None:
        """Unlink a segment. Nothing is read, whatever was in it. Without ``lock``, the store's, which is taken for an
        instant. Whoever deletes says so to ``happenings``, after all that there is to delete: observers woken in between
        would take the interpreter from it, unlink by unlink."""
        with lock:
            if segment.number in self.readers:
                self._close_reader(segment.number)
        self.hints.drop(segment)
        with self.errors(segment):
            if self.erase:
                doomed = segment.path.with_name(segment.path.name + DOOMED)
                with contextlib.suppress(FileNotFoundError):  # as for ``unlink``
                    self.files.replace(segment.path, doomed)
                    self.doomed.append(doomed)
            else:
                self.files.unlink(segment.path)
        with lock:
            if segment.number in self.readers:  # of somebody who came between
                self._close_reader(segment.number)
            self.by_number.pop(segment.number, None)
        if segment in self.given_up:
            self.given_up.remove(segment)

    def sync_directory(self) -> None:
        """Make new and deleted names durable."""
        with io_errors(self.directory):
            self.files.sync_directory(self.directory)

    def _close_reader(self, number: int) -> None:
        self.epoch += 1
        self.unmap(number)
        fd, _ = self.readers.pop(number)
        with self.errors(self.by_number[number]):
            self.files.close(fd)

    def close(self) -> None:
        """Let go of every descriptor, also of those behind one whose close fails."""
        self.given_up.clear()
        with contextlib.ExitStack() as stack:
            for number in list(self.readers):
                stack.callback(self._close_reader, number)
            stack.callback(self.seal_current)

    def errors(self, segment: Segment, offset: int | None = None) -> io_errors:
        """Say where an error of the operating system happened, and what to do."""
        return io_errors(segment.path, offset)


class io_errors:  # noqa: N801 - used as a function; a generator would cost a flush several microseconds
    """A context in which errors of the operating system, about a file or a whole directory, become StoreIOError. What a format
    cannot do with a file names the file."""

    __slots__ = ("_offset", "_path")

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self._offset = offset

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise io_error(self._path, self._offset, error) from error
        if isinstance(error, BrokenPlugin):
            raise BrokenPlugin(f"{self._path}: {error}") from error.__cause__


def io_error(path: Path, offset: int | None, error: OSError) -> StoreIOError:
    where = f"{path}" + (f" at offset {offset}" if offset is not None else "")
    return StoreIOError(
        f"{where}: {error.strerror or error}. Mend the cause (space, limits, permissions, the disk) and try again: what is "
        f"on disk stays, and what was not confirmed is kept in memory until the next flush()."
    )
