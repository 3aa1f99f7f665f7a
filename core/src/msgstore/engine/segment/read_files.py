"""Read files: open descriptors and maps of the segments of one store. At a limit, the least recently opened one is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from mmap import mmap

from msgstore.engine.segment.segment import Segment
from msgstore.files import Files

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
