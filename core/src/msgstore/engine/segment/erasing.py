"""``erase = true``: what was removed is overwritten with zeros before its space is given back.

Nothing is overwritten in place: a gap between live records is never touched. A segment that is collected is rewritten, what is
alive goes into a fresh one; and a segment that is deleted, for that or for being empty, first loses its name. Then it is
nothing that any start reads, and a crash inside the zeros harms nobody: the next start goes on with them. What is synced
last are the zeros, or unlinking the file would keep them from ever reaching the disk.

This reaches what the file system gives back to us in the same place. It does not reach copies that a disk, a file system or
a backup has made of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from msgstore.directory import ERASE_SUFFIX, TEMP_SUFFIX, segments_ending
from msgstore.files import Files

_CHUNK = bytes(2**20)


def overwrite(files: Files, path: Path) -> None:
    """Zeros over all of a file, on disk when this returns. Nothing to do if there is none. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        fd = files.open_write(path)
        try:
            size, _ = files.size_and_mtime(fd)
            for offset in range(0, size, len(_CHUNK)):
                files.pwrite(fd, memoryview(_CHUNK)[: size - offset], offset)
            files.sync(fd)
        finally:
            files.close(fd)


def remove(files: Files, path: Path, *, erase: bool) -> None:
    """Unlink a file that no start reads. Raises OSError."""
    if erase:
        overwrite(files, path)
    files.unlink(path)


def remove_leftovers(files: Files, directory: Path, extensions: Collection[str], *, erase: bool) -> None:
    """At an opening: copies that a crash has kept from getting their names, and segments that it has kept from being erased."""
    names = files.list(directory)
    for name in segments_ending(names, TEMP_SUFFIX, extensions):
        remove(files, directory / name, erase=erase)
    for name in segments_ending(names, ERASE_SUFFIX, extensions):
        remove(files, directory / name, erase=True)
