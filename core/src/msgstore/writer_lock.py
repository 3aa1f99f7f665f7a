"""Writer lock of a store directory: one writing process. It is an operating-system lock, so it ends with its process.

The lock is on the directory and on the file ``msgstore.lock``. The file may be a link, a pipe, or hold any content.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path

from msgstore.contract import StoreError, StoreLocked
from msgstore.directory import LOCK
from msgstore.files import Files

log = logging.getLogger("msgstore.store")

MAX_TEXT = 64
"""Bytes of the lock file that are read."""
_ATTEMPTS, _PAUSE_SECONDS = 50, 0.02
"""Retries of the lock, up to one second in total. A reader holds the lock for an instant to detect a writer."""
_ATTEMPTS_LIVE_WRITER = 3
"""Retries if the file names a live process. The process id may be stale, and the actual holder may be a reader."""


class WriterLock:
    """Writer lock, held from construction until ``release``. Raises StoreLocked with the holder's process id.

    The text of the lock file tells readers in other processes about the writer (:mod:`msgstore.engine.read.live_reader`).
    The directory is locked too. Otherwise, if the lock file is removed, a second writer could lock a new file of that name.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self._files = files or Files()
        self._directory = _DirectoryLock(directory)
        self._file = FileIO(open_lock(directory, os.O_RDWR | os.O_CREAT), "r+")
        """File object instead of a descriptor: ``close`` is one step under signals, and may be called twice."""
        for attempt in range(_ATTEMPTS):
            try:
                _lock(self._file.fileno())
                self._directory.lock()
                break
            except OSError as error:
                holder = locked(directory)
                if attempt + 1 < (_ATTEMPTS_LIVE_WRITER if _alive(holder.pid) else _ATTEMPTS):
                    time.sleep(_PAUSE_SECONDS)
                    continue
                self._close()
                raise holder from error
        try:
            self._write_text(f"{os.getpid()}")
        except BaseException:
            self._close()
            raise

    def opened(self) -> None:
        """Mark the store as open: from now on, other processes can read a complete index."""
        if not self._file.closed:
            self._write_text(f"{os.getpid()} {os.urandom(8).hex()}")

    @property
    def place(self) -> tuple[int, int]:
        """Identity of the directory (device, inode). No other directory has it while this lock is held."""
        return self._directory.place

    def is_in(self, directory: Path) -> bool:
        """Return True if ``directory`` is still the locked directory. It may have been moved away or deleted."""
        if self._file.closed:
            return False
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(directory / LOCK))  # noqa: PTH116 - compared with fstat
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Write the end marker into the lock file and release the lock. May be called again."""
        if not self._file.closed:
            try:
                with suppress(OSError):  # a full disk: the old text names a process that has ended
                    self._write_text(f"- {os.urandom(8).hex()}")
            finally:
                self._close()

    def hand_over(self, pid: int) -> int:
        """Write ``pid`` into the lock file as the holder, and return a descriptor that keeps the lock.

        The lock lasts until the last copy of the descriptor is closed. This object no longer has a lock to release.
        """
        self._write_text(f"{pid}")
        with self._file:
            self._directory.close()
            return os.dup(self._file.fileno())

    def _write_text(self, text: str) -> None:
        """Replace the text in one write. A concurrent reader sees the old text, the new text, or briefly a mixture."""
        data = f"{text}\n".encode()
        self._files.overwrite(self._file.fileno(), data)

    def disown(self) -> None:
        """Close the lock file in a forked child. Otherwise the lock would outlive the parent's store."""
        self._close()

    def _close(self) -> None:
        self._directory.close()
        self._file.close()


class _DirectoryLock:
    """Open directory with a lock, where the operating system supports it. Closed on garbage collection."""

    def __init__(self, directory: Path) -> None:
        self._fd = -1
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        status = os.fstat(self._fd)
        self.place = status.st_dev, status.st_ino

    def lock(self, *, shared: bool = False) -> None:
        """Lock the directory. Raises BlockingIOError if another process has the lock. Some network file systems lock only
        files: then do nothing."""
        try:
            _lock(self._fd, shared=shared)
        except BlockingIOError:
            raise
        except OSError as error:
            log.debug("the directory cannot be locked: %s. Only the lock file is locked.", error)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def _alive(pid: int | None) -> bool:
    """Return False if there is certainly no such process."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def check_no_writer(directory: Path) -> None:
    """Raise StoreLocked while a writer has the directory open. Writes nothing, creates nothing."""
    with suppress(FileNotFoundError):
        fd = open_lock(directory, os.O_RDONLY)
        try:
            _lock(fd, shared=True)
        except OSError as error:
            raise locked(directory) from error
        finally:
            os.close(fd)
    # The lock file may have been removed or replaced while a writer is running.
    with suppress(FileNotFoundError, PermissionError), closing(_DirectoryLock(directory)) as directory_lock:
        try:
            directory_lock.lock(shared=True)
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


def _lock(fd: int, *, shared: bool = False) -> None:
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
