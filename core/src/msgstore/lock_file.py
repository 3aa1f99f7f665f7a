"""The file ``msgstore.lock``: opened so that it can be nothing else, and read so that it may hold anything."""

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
    """A descriptor of the lock file. A link would lead to a file that is not ours, and that is emptied; a pipe would wait.

    Raises StoreError for either, FileNotFoundError if there is none and ``flags`` do not say to make it.
    """
    path = directory / LOCK
    extra = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags | extra, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _not_plain(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_plain(path)
    return fd


def read_lock(directory: Path) -> bytes:
    """What the lock file says; empty if it cannot be read, for it only serves messages."""
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
    """(process id, session) in the text of a lock file; None and nothing for what it does not say."""
    lines = text[:MAX_TEXT].split()
    digits = lines[0] if lines else b""
    pid = int(digits) if digits.isdigit() and len(digits) <= 10 else 0
    if not 0 < pid < 2**31 or str(pid).encode() != digits:
        return None, b""
    try:
        return pid, bytes.fromhex(lines[1].decode("ascii")) if len(lines) > 1 else b""
    except ValueError:
        return pid, b""


def _not_plain(path: Path) -> StoreError:
    return StoreError(f"{path}: is a link, a directory or a device where a plain file belongs; remove it")
