"""One writer a directory. The lock is the operating system's, so it ends with its process, however that ends."""

from __future__ import annotations

import logging
import os
import time
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path

from msgstore.contract import StoreLocked
from msgstore.directory import LOCK
from msgstore.files import Files
from msgstore.lock_file import open_lock, parse_lock, read_lock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt


log = logging.getLogger("msgstore.store")

_ATTEMPTS, _PAUSE = 50, 0.02
"""A reader holds the lock for an instant to see whether there is a writer; a writer waits that out, a second at most."""
_ATTEMPTS_AT_A_WRITER = 3
"""If the file names a process that is alive. The name may be old, and whoever holds the lock a reader."""


class WriterLock:
    """Held from construction to ``release``. Raises StoreLocked with the holder's process id.

    The file's text tells other processes what they read beside: see :mod:`msgstore.engine.read.lock_text`. The directory itself is
    locked, too: the file can be removed, and a second writer would lock another one of its name.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self._files = files or Files()
        self._directory = _Directory(directory)
        self._file = FileIO(open_lock(directory, os.O_RDWR | os.O_CREAT), "r+")
        """Not a descriptor: closing it is one step, wherever a signal comes, and may be done again."""
        for attempt in range(_ATTEMPTS):
            try:
                _lock(self._file.fileno())
                self._directory.lock()
                break
            except OSError as error:
                holder = locked(directory)
                if attempt + 1 < (_ATTEMPTS_AT_A_WRITER if _alive(holder.pid) else _ATTEMPTS):
                    time.sleep(_PAUSE)
                    continue
                self._close()
                raise holder from error
        try:
            self._say(f"{os.getpid()}")
        except BaseException:
            self._close()
            raise

    def opened(self) -> None:
        """The store is open: what another process finds in the index is whole from now on."""
        if not self._file.closed:
            self._say(f"{os.getpid()} {os.urandom(8).hex()}")

    @property
    def place(self) -> tuple[int, int]:
        """The identity of the directory, which no other one has while this is locked."""
        return self._directory.place

    def is_in(self, directory: Path) -> bool:
        """Whether that is still the directory that is locked: it may have been moved away or deleted."""
        if self._file.closed:
            return False
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(directory / LOCK))  # noqa: PTH116 - beside a descriptor's
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if not self._file.closed:
            try:
                with suppress(OSError):  # a full disk: what stands there is of a process that is not there
                    self._say(f"- {os.urandom(8).hex()}")
            finally:
                self._close()

    def hand_over(self, pid: int) -> int:
        """From here on the lock is said to be process ``pid``'s, and lasts as long as anybody has the descriptor open that is
        returned. Nothing is left to release here."""
        self._say(f"{pid}")
        with self._file:
            self._directory.close()
            return os.dup(self._file.fileno())

    def _say(self, text: str) -> None:
        """In one write: who reads meanwhile finds what stood there before, or this, or for an instant something else."""
        data = f"{text}\n".encode()
        self._files.overwrite(self._file.fileno(), data)

    def disown(self) -> None:
        """In a forked child: the lock lasts as long as anybody has its file open, and whose it is may want to open again."""
        self._close()

    def _close(self) -> None:
        self._directory.close()
        self._file.close()


class _Directory:
    """An open directory, and a lock on it where the operating system has one. Closed when nobody refers to it any more."""

    def __init__(self, directory: Path) -> None:
        self._fd = -1
        self.place = 0, 0
        if fcntl is not None:
            self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            status = os.fstat(self._fd)
            self.place = status.st_dev, status.st_ino

    def lock(self, *, shared: bool = False) -> None:
        """Raises BlockingIOError if another process has the lock. Some network file systems lock files only."""
        if self._fd >= 0:
            try:
                _lock(self._fd, shared=shared)
            except BlockingIOError:
                raise
            except OSError as error:
                log.debug("the directory cannot be locked, the lock file has to do: %s", error)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def _alive(pid: int | None) -> bool:
    """False if there is surely no such process."""
    if pid is None:
        return False
    if os.name == "posix":  # elsewhere signal 0 is none
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
    return True


def check_no_writer(directory: Path) -> None:
    """Raises StoreLocked while a writer has the directory. Writes nothing, creates nothing."""
    try:
        fd = open_lock(directory, os.O_RDONLY)
    except FileNotFoundError:
        _check_directory(directory)
        return
    try:
        _lock(fd, shared=True)
    except OSError as error:
        raise locked(directory) from error
    finally:
        os.close(fd)
    _check_directory(directory)


def _check_directory(directory: Path) -> None:
    """The lock file may have been removed, or another one put there, while a writer has the directory."""
    with suppress(FileNotFoundError, PermissionError), closing(_Directory(directory)) as looked_at:
        try:
            looked_at.lock(shared=True)
        except BlockingIOError as error:
            raise locked(directory) from error


def locked(directory: Path) -> StoreLocked:
    pid, _ = parse_lock(read_lock(directory))
    holder = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
    return StoreLocked(
        f"{directory}: {holder} has the store open for writing. Close it there first; 'msgstore scan' and 'msgstore map' "
        f"read the segments all the same.",
        pid,
    )


if fcntl is not None:

    def _lock(fd: int, *, shared: bool = False) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

else:

    def _lock(fd: int, *, shared: bool = False) -> None:  # noqa: ARG001 - there is none here; who looks may meet who looks
        os.lseek(fd, 2**30, os.SEEK_SET)  # behind the process id, which others read
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
