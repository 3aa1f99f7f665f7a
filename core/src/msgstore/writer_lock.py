"""Writer lock of a store directory: one writing process. It is an operating-system lock, so it ends with its process.

The lock is on the directory, which nobody can remove alone, and on the file ``msgstore.lock``: some network file systems pass
locks of files to their server, and lock directories on one machine only, or not at all. The file names the process. It may be
a link, a pipe, or hold any content.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path

from msgstore.contract import StoreError, StoreLocked
from msgstore.directory import LOCK
from msgstore.files import Files

MAX_TEXT = 64
"""Bytes of the lock file that are read."""
_TEXT = re.compile(rb"\s*([1-9]\d{0,9})(?!\S)(?:\s+((?:[0-9a-fA-F]{2})+)(?!\S))?")
_ATTEMPTS, _PAUSE_SECONDS = 15, 0.02
"""Attempts to lock. A reader holds the lock for an instant to detect a writer."""


class WriterLock:
    """Writer lock, held from construction until ``release``. Raises StoreLocked with the holder's process id.

    The text of the lock file tells readers in other processes about the writer (:mod:`msgstore.engine.read.live_reader`).
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self._files = files or Files()
        self._directory = _Directory(directory)
        self._file = FileIO(open_lock(directory, os.O_RDWR | os.O_CREAT), "r+")
        """File object instead of a descriptor: ``close`` is one step under signals, and may be called twice."""
        status = os.fstat(self._directory.fd)
        self.place = status.st_dev, status.st_ino
        """Identity of the directory (device, inode). No other directory has it while this lock is held."""
        try:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    self._directory.lock(fcntl.LOCK_EX)
                    fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if not left:
                        raise locked(directory) from error
                    time.sleep(_PAUSE_SECONDS)
            if os.fstat(self._file.fileno()).st_nlink > 1:
                self._replace_file(directory)
            self._write_text(f"{os.getpid()}")
        except BaseException:
            self.disown()
            raise

    def _replace_file(self, directory: Path) -> None:
        """Take another lock file: a copy of the directory by hard links (``cp -al``) has the same one, and tells its readers
        about this writer. Caller holds the locks."""
        self._file.close()
        (directory / LOCK).unlink()
        self._file = FileIO(open_lock(directory, os.O_RDWR | os.O_CREAT), "r+")
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise locked(directory) from error

    def opened(self) -> None:
        """Mark the store as open: from now on, other processes can read a complete index."""
        if not self._file.closed:
            self._write_text(f"{os.getpid()} {os.urandom(8).hex()}")

    def is_in(self, directory: Path) -> bool:
        """Return True if ``directory`` is still the locked directory. It may have been moved away or deleted."""
        try:
            status = directory.stat()
        except FileNotFoundError:
            return False
        return not self._file.closed and (status.st_dev, status.st_ino) == self.place

    def release(self) -> None:
        """Write the end marker into the lock file and release the lock. May be called again."""
        if not self._file.closed:
            try:
                with suppress(OSError):  # a full disk: the old text names a process that has ended
                    self._write_text(f"- {os.urandom(8).hex()}")
            finally:
                self.disown()

    def hand_over(self, pid: int) -> int:
        """Write ``pid`` into the lock file as the holder, and return a descriptor that keeps the lock.

        The lock lasts until the last copy of the descriptor is closed. This object no longer has a lock to release.
        """
        self._write_text(f"{pid}")
        fd = os.dup(self._file.fileno())
        self.disown()
        return fd

    def disown(self) -> None:
        """Close the descriptors. A forked child does so, or the lock would outlive the parent's store."""
        self._directory.close()
        self._file.close()

    def _write_text(self, text: str) -> None:
        """Replace the text in one write. A concurrent reader sees the old text, the new text, or briefly a mixture."""
        self._files.overwrite(self._file.fileno(), f"{text}\n".encode())


class _Directory:
    """Open directory. Closed on garbage collection."""

    fd = -1

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def lock(self, kind: int) -> None:
        """Lock the directory, if the file system can. Raises BlockingIOError if another process has the lock."""
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def check_no_writer(directory: Path) -> None:
    """Raise StoreLocked while a writer has the directory open. Writes nothing, creates nothing."""
    try:
        with suppress(FileNotFoundError, PermissionError), closing(_Directory(directory)) as opened:
            opened.lock(fcntl.LOCK_SH)
        with suppress(FileNotFoundError, PermissionError), FileIO(open_lock(directory, os.O_RDONLY)) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise locked(directory) from error


def locked(directory: Path) -> StoreLocked:
    """Return the error for a locked directory, with the holder's process id if the lock file names one."""
    pid, _ = parse_lock(read_lock(directory))
    holder = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
    return StoreLocked(
        f"{directory}: {holder} has the store open for writing. Close it there first; 'msgstore scan' and 'msgstore map' "
        f"read the segments without the lock.",
        pid,
    )


def open_lock(directory: Path, flags: int) -> int:
    """Open the lock file and return its descriptor. ``flags`` are those of ``os.open``.

    Refuses a link, because the writer empties the file, and a pipe, because opening it would block. Raises StoreError for
    anything that is not a regular file, FileNotFoundError if the file is missing and ``flags`` do not create it.
    """
    path = directory / LOCK
    not_regular = StoreError(f"{path}: is a link, a directory or a device, not a regular file. Remove it.")
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise not_regular from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise not_regular
    return fd


def read_lock(directory: Path) -> bytes:
    """Return the text of the lock file, empty if it cannot be read. The text is used in messages only."""
    with suppress(OSError, StoreError), FileIO(open_lock(directory, os.O_RDONLY)) as file:
        return file.read(MAX_TEXT) or b""
    return b""


def parse_lock(text: bytes) -> tuple[int | None, bytes]:
    """Return (process id, session) from the text of a lock file; (None, empty) for invalid text, an empty session if absent."""
    found = _TEXT.match(text[:MAX_TEXT])
    if not found or int(found[1]) >= 2**31:
        return None, b""
    return int(found[1]), bytes.fromhex((found[2] or b"").decode())
