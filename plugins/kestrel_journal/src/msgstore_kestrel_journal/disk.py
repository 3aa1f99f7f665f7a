"""File operations of the journal engine. Tests inject faults and crashes here."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_READ_WHOLE = 64 * 2**20


class Disk:
    """Methods raise OSError."""

    def names(self, directory: Path) -> list[str]:
        return sorted(entry.name for entry in directory.iterdir() if entry.is_file())

    def read(self, path: Path) -> bytes | mmap.mmap:
        """Return the content of a file. A large one is mapped."""
        if path.stat().st_size <= _READ_WHOLE:
            return path.read_bytes()
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def open_append(self, path: Path) -> int:
        """Open a file for appending, and create it if it is missing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Return fewer bytes at the end of the file only: one call of the system reads less than 2 GiB."""
        data = os.pread(fd, size, offset)
        while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data

    def append(self, fd: int, data: bytes) -> None:
        """Write all of ``data``."""
        while len(data) > (written := os.write(fd, data)):
            data = data[written:]

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        os.close(fd)
