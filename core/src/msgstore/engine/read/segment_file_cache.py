"""Segments that another process writes: found by number when they are asked for, their descriptors bounded."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import attrs

from msgstore.files import Files
from msgstore.scan import FormatSet

MAX_OPEN = 64
"""Descriptors; the least recently opened one is closed first. One holds the space of a segment that is deleted meanwhile."""


@attrs.frozen(eq=False)
class FoundFile:
    path: Path
    fd: int
    decode: Callable[[bytes, bytes], bytes]


class SegmentFileCache:
    """Of one store directory. Any thread. Raises OSError."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._formats: FormatSet | None = None
        """What the open files were opened with. In another one's time a number may be another file's."""
        self._open: dict[int, FoundFile] = {}
        self._changing = threading.Lock()
        self._closed = False

    def get(self, number: int, formats: FormatSet) -> FoundFile:
        """FileNotFoundError if no format has a segment of this number."""
        found = self._open.get(number) if formats is self._formats else None
        return found or self._find(number, formats)

    def _find(self, number: int, formats: FormatSet) -> FoundFile:
        with self._changing:
            if self._closed:
                raise OSError(errno.EBADF, "the store is closed", str(self._directory))
            if formats is not self._formats:
                self._drop_all()
                self._formats = formats
            for extension in formats.extensions:
                path = self._directory / f"{number}{extension}"
                try:
                    fd = self._files.open_read(path)
                except FileNotFoundError:
                    continue
                self._make_room()
                found = self._open[number] = FoundFile(path, fd, formats.by_extension(extension).format.decode)
                return found
        raise FileNotFoundError(errno.ENOENT, "there is no such segment", str(self._directory / str(number)))

    def read(self, number: int, offset: int, size: int, formats: FormatSet) -> tuple[FoundFile, bytes] | None:
        """Up to ``size`` bytes; None if another thread has closed the file meanwhile, and they may be anything."""
        found = self.get(number, formats)
        try:
            data = self._files.pread(found.fd, size, offset)
        except OSError:
            if self._open.get(number) is found:
                raise
            return None
        return (found, data) if self._open.get(number) is found else None

    def path(self, number: int) -> Path | None:
        """Of a segment that is open."""
        found = self._open.get(number)
        return None if found is None else found.path

    def _make_room(self) -> None:
        """Also give the space of deleted segments back."""
        for number, found in list(self._open.items()):
            if self._files.is_deleted(found.fd):
                self._close(number)
        while len(self._open) >= MAX_OPEN:
            self._close(next(iter(self._open)))

    def drop(self, number: int) -> None:
        """Open the file anew at the next call: what has its name may be another one."""
        with self._changing:
            if number in self._open:
                self._close(number)

    def close(self) -> None:
        """Nothing is opened any more."""
        with self._changing:
            self._closed = True
            self._drop_all()

    def _drop_all(self) -> None:
        for number in list(self._open):
            self._close(number)

    def _close(self, number: int) -> None:
        self._files.close(self._open.pop(number).fd)
