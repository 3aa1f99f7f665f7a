"""Sparse files: a scan skips what reads as zeros because the file system has nothing stored there."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
from collections.abc import Iterator


class SparseMap(mmap.mmap):
    """Mapped file that knows its descriptor, which is open as long as the map."""

    fd: int


def next_data(fd: int, offset: int) -> int:
    """Return the first stored offset from ``offset`` on; a huge one if none is, ``offset`` if the system does not tell."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except (OSError, AttributeError) as error:
        return sys.maxsize if isinstance(error, OSError) and error.errno == errno.ENXIO else offset


def stored_parts(data: bytes | mmap.mmap, start: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each part of ``data`` from ``start`` on that is stored. Everything between them is zeros.

    Yields the whole rest of ``bytes``, of other maps, and where the operating system does not tell.
    """
    size = len(data)
    while start < size:
        begin, end = start, size
        if isinstance(data, SparseMap):
            begin = next_data(data.fd, start)
            with contextlib.suppress(OSError, AttributeError):
                end = min(os.lseek(data.fd, begin, os.SEEK_HOLE), size)
        if begin < end:
            yield begin, end
        start = max(end, begin)
