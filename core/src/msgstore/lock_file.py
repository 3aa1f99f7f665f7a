"""Access to the file ``msgstore.lock``: open regular files only, and parse any content."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from msgstore.contract import StoreError
from msgstore.directory import LOCK

MAX_TEXT = 64
"""Bytes of the lock file that are read."""


def open_lock(directory: Path, flags: int) -> int:
    """Open the lock file and return its descriptor. ``flags`` are those of ``os.open``.

    Refuses a link, because the writer empties the file, and a pipe, because opening it would block. Raises StoreError for
    anything that is not a regular file, FileNotFoundError if the file is missing and ``flags`` do not create it.
    """
    path = directory / LOCK
    extra = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags | extra, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_regular(path)
    return fd


def read_lock(directory: Path) -> bytes:
    """Return the text of the lock file, empty if it cannot be read. The text is used in messages only."""
    try:
        fd = open_lock(directory, os.O_RDONLY)
    except (OSError, StoreError):
        return b""
    try:
        return os.read(fd, MAX_TEXT)
    except OSError:
        return b""
    finally:
        os.close(fd)


def parse_lock(text: bytes) -> tuple[int | None, bytes]:
    """Return (process id, session) from the text of a lock file; (None, empty) for invalid text, an empty session if absent."""
    lines = text[:MAX_TEXT].split()
    digits = lines[0] if lines else b""
    pid = int(digits) if digits.isdigit() and len(digits) <= 10 else 0
    if not 0 < pid < 2**31 or str(pid).encode() != digits:
        return None, b""
    try:
        return pid, bytes.fromhex(lines[1].decode("ascii")) if len(lines) > 1 else b""
    except ValueError:
        return pid, b""


def _not_regular(path: Path) -> StoreError:
    return StoreError(f"{path}: is a link, a directory or a device, not a regular file. Remove it.")
