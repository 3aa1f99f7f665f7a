"""Erasing (``erase = true``): overwrite removed messages with zeros before their space is freed.

Only whole segments are overwritten. A segment with live records is first compacted by copy. A deleted segment is renamed, so
that no opening reads it; then it is overwritten, synced and unlinked. After a crash the next opening continues there.

Copies that a disk, a file system or a backup made on its own are not overwritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from msgstore.directory import ERASE_SUFFIX, TEMP_SUFFIX, segments_ending
from msgstore.files import Files

_CHUNK = bytes(2**20)


def overwrite(files: Files, path: Path) -> None:
    """Overwrite a file with zeros and sync it, if it exists. Raises OSError."""
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
    """Unlink a file that no opening reads; with ``erase`` overwrite it first. Raises OSError."""
    if erase:
        overwrite(files, path)
    files.unlink(path)


def remove_leftovers(files: Files, directory: Path, extensions: Collection[str], *, erase: bool) -> None:
    """Delete what a crash left: unfinished copies, and deleted segments that were not erased yet. Raises OSError."""
    names = files.list(directory)
    for name in segments_ending(names, TEMP_SUFFIX, extensions):
        remove(files, directory / name, erase=erase)
    for name in segments_ending(names, ERASE_SUFFIX, extensions):
        remove(files, directory / name, erase=True)
