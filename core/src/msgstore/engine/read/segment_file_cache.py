"""Segment file cache: open descriptors of segments that another process writes, found by number."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import attrs

from msgstore.files import Files
from msgstore.scan import FormatSet, OpenFormat

MAX_OPEN = 64
"""Open descriptors. The least recently opened one is closed first. A descriptor holds the space of a deleted segment."""


@attrs.frozen(eq=False)
class _FoundFile:
    path: Path
    fd: int
    form: OpenFormat


class SegmentFileCache:
    """One instance per store directory. Thread-safe. Methods raise OSError."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._formats: FormatSet | None = None
        """Formats that the files were opened with. With other formats a number may belong to another file."""
        self._open: dict[int, _FoundFile] = {}
        self._changing = threading.Lock()
        self._closed = False

    def read(self, number: int, offset: int, size: int, formats: FormatSet) -> tuple[Path, OpenFormat, bytes] | None:
        """Return path, format, and up to ``size`` bytes; None if another thread has closed the file: the bytes may be wrong.

        FileNotFoundError if no format has a segment of this number.
        """
        found = (self._open.get(number) if formats is self._formats else None) or self._find(number, formats)
        try:
            data = self._files.pread(found.fd, size, offset)
        except OSError:
            if self._open.get(number) is found:
                raise
            return None
        return (found.path, found.form, data) if self._open.get(number) is found else None

    def _find(self, number: int, formats: FormatSet) -> _FoundFile:
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
                found = self._open[number] = _FoundFile(path, fd, formats.by_extension(extension))
                return found
        raise FileNotFoundError(errno.ENOENT, "there is no such segment", str(self._directory / str(number)))

    def _make_room(self) -> None:
        """Close files down to the limit, and those of deleted segments, whose space they hold."""
        for number, found in list(self._open.items()):
            if self._files.is_deleted(found.fd):
                self._close(number)
        while len(self._open) >= MAX_OPEN:
            self._close(next(iter(self._open)))

    def drop(self, number: int) -> None:
        """Close a file, so that the next call opens it again."""
        with self._changing:
            if number in self._open:
                self._close(number)

    def close(self) -> None:
        """Close all files. Later calls raise OSError."""
        with self._changing:
            self._closed = True
            self._drop_all()

    def _drop_all(self) -> None:
        for number in list(self._open):
            self._close(number)

    def _close(self, number: int) -> None:
        self._files.close(self._open.pop(number).fd)
