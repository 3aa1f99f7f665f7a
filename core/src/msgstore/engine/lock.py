"""One writer a directory. The lock is the operating system's, so it ends with its process, however that ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgstore.contract import StoreLocked
from msgstore.engine.lock_file import open_lock, parse_lock, read_lock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt


_ATTEMPTS, _PAUSE = 50, 0.02
"""A reader holds the lock for an instant to see whether there is a writer; a writer waits that out, a second at most."""


class WriterLock:
    """Held from construction to ``release``. Raises StoreLocked with the holder's process id."""

    def __init__(self, directory: Path) -> None:
        self._fd: int | None = open_lock(directory, os.O_RDWR | os.O_CREAT)
        for attempt in range(_ATTEMPTS):
            try:
                _lock(self._fd)
                break
            except OSError as error:
                holder = locked(directory)
                if holder.pid is None and attempt + 1 < _ATTEMPTS:  # somebody only looks whether there is a writer
                    time.sleep(_PAUSE)
                    continue
                os.close(self._fd)
                raise holder from error
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def check_no_writer(directory: Path) -> None:
    """Raises StoreLocked while a writer has the directory. Writes nothing, creates nothing."""
    try:
        fd = open_lock(directory, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        _lock(fd, shared=True)
    except OSError as error:
        raise locked(directory) from error
    finally:
        os.close(fd)


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
