"""File layers that count operations, fail at one of them, or end the process there; and copies of a directory as it is.

The engine and indexes do their file operations through one object (:class:`msgstore.files.Files`). A test gives them one of
these instead. A *change* is an operation that leaves a directory other than it was, or more durable.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgstore.files import Files

CHANGES = (
    "create", "create_directory", "pwrite", "sync", "sync_directory", "allocate", "truncate", "set_mtime",
    "unlink", "remove_tree", "replace",
)  # fmt: skip
OPENINGS = ("open_read", "open_write", "read_file")
SECTOR = 512
"""Bytes that a disk writes as one."""


class UnsyncedFiles(Files):
    """Does not wait for the disk: for tests of what is done, not of when it is durable."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Crash(BaseException):
    """The process ended here. Not an Exception: nothing may handle it."""


class RecordingFiles(UnsyncedFiles):
    """Records every operation as (name, path or None, bytes). A sync is recorded, and does not wait for the disk."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, str, int]] = []
        self._paths: dict[int, str] = {}

    def count(self, *names: str) -> int:
        return sum(1 for name, _, _ in self.operations if name in names)

    def changes(self) -> list[tuple[str, str, int]]:
        return [operation for operation in self.operations if operation[0] in CHANGES]

    def _note(self, name: str, path: object, size: int = 0) -> None:
        """Called before each operation."""
        self.operations.append((name, str(path), size))

    def _run(self, name: str, *args: Any) -> Any:
        operation = getattr(super(), name)
        target = args[-1] if name == "replace" else args[0]
        size = len(args[1]) if name in ("pwrite", "overwrite") else args[1] if name in ("pread", "truncate", "allocate") else 0
        self._note(name, target if isinstance(target, Path) else self._paths.get(target), size)
        result = operation(*args)
        if name in ("create", "open_read", "open_write"):
            self._paths[result] = target.name
        return result


def _recorded(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._run(name, *args)


for _name in (*CHANGES, *OPENINGS, "pread", "overwrite"):
    setattr(RecordingFiles, _name, _recorded(_name))


class StoppingFiles(RecordingFiles):
    """Ends the process at the ``stop``-th change, before it; for a write, after its first ``torn`` bytes if that is given.

    Once stopped, every change raises: no clean-up runs in a process that is gone.
    """

    def __init__(self, stop: int, torn: int = 0) -> None:
        super().__init__()
        self._left = stop
        self._torn = torn
        self.stopped = False

    def _note(self, name: str, path: object, size: int = 0) -> None:
        super()._note(name, path, size)
        if name in CHANGES:
            if self._left == 0:
                self.stopped = True
                raise Crash
            self._left -= 1

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self._left == 0 and not self.stopped and self._torn:
            Files.pwrite(self, fd, memoryview(data)[: self._torn], offset)
        self._run("pwrite", fd, data, offset)


class FailingFiles(RecordingFiles):
    """Fails the ``fail``-th change or opening, counted from 0, once; never if that is None."""

    def __init__(self, fail: int | None = None, *, error: int = errno.EIO) -> None:
        super().__init__()
        self.fail = fail
        self.error = error
        self.failed = ""
        """What failed, and on which path."""

    def _note(self, name: str, path: object, size: int = 0) -> None:
        super()._note(name, path, size)
        if self.fail is not None and name in (*CHANGES, *OPENINGS):
            self.fail -= 1
            if self.fail == -1:
                self.fail = None
                self.failed = f"{name} {path}"
                raise OSError(self.error, os.strerror(self.error))


class TornFiles(FailingFiles):
    """Half of a write that fails is on disk. ``look`` is called before the index cleans up, as after a crash at this point."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def _run(self, name: str, *args: Any) -> Any:
        try:
            return super()._run(name, *args)
        except OSError:
            if self.failed and name == "pwrite":
                fd, data, offset = args
                Files.pwrite(self, fd, memoryview(data)[: len(data) // 2], offset)
            if self.failed:
                self._look()
            raise


@contextlib.contextmanager
def _limited(what: int, most: int) -> Iterator[None]:
    """Let this process have no more than ``most`` of a resource."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def file_size_limit(size: int) -> AbstractContextManager[None]:
    """Let each write of this process beyond ``size`` bytes of a file fail with EFBIG, also those of a library."""
    return _limited(resource.RLIMIT_FSIZE, size)


def no_more_files() -> AbstractContextManager[None]:
    """Let this process open no further file: EMFILE, also in a library."""
    return _limited(resource.RLIMIT_NOFILE, 3)


def address_space(size: int) -> AbstractContextManager[None]:
    """Let this process have no more than ``size`` further bytes of addresses: MemoryError, before the machine swaps."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return contextlib.nullcontext()
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    return _limited(resource.RLIMIT_AS, used + size)


_SYNCS = {"x86_64": (317, 74, 75, 26, 306), "aarch64": (277, 82, 83, 227, 267)}
"""Numbers of the system calls seccomp, fsync, fdatasync, msync and syncfs, by machine."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.EIO
"""Instructions and results of a seccomp filter (seccomp(2)). The first word that it can load is the number of the call."""
_NO_NEW_PRIVILEGES, _SET_FILTER = 38, 1


def fail_syncs() -> bool:
    """Let each later sync of this process fail with EIO, for ever. Return False if the system cannot do that."""
    seccomp, *syncs = _SYNCS.get(platform.machine(), (0,)) if sys.platform == "linux" else (0,)
    jumps = [(_JUMP_IF_EQUAL, len(syncs) - at, 0, number) for at, number in enumerate(syncs)]
    steps = [(_LOAD, 0, 0, 0), *jumps, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    return (
        bool(seccomp)
        and libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        and libc.syscall(seccomp, _SET_FILTER, 1, program) == 0
    )


def crash_points(whole: RecordingFiles) -> list[tuple[int, int]]:
    """(stop, torn) for :class:`StoppingFiles`: before each change that a whole run made, and inside each write, at every end of
    a sector."""
    changes = enumerate(whole.changes())
    return [
        (stop, torn) for stop, (name, _, size) in changes for torn in (0, *range(SECTOR, size * (name == "pwrite"), SECTOR))
    ]


def copy_of(directory: Path, target: Path) -> Path:
    """Copy a directory as a process that is killed now leaves it. ``target`` is made; holes in files stay holes."""
    return Path(shutil.copytree(directory, target, copy_function=_copy_with_holes))


def _copy_with_holes(source: str, target: str) -> None:
    with open(source, "rb") as reading, open(target, "wb") as writing:  # noqa: PTH123 - copytree gives strings
        end, size = 0, os.lseek(reading.fileno(), 0, os.SEEK_END)
        while end < size:
            try:
                begin = os.lseek(reading.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # the rest is a hole
                    raise
                break
            end = os.lseek(reading.fileno(), begin, os.SEEK_HOLE)
            os.pwrite(writing.fileno(), os.pread(reading.fileno(), end - begin, begin), begin)
        writing.truncate(size)
    shutil.copystat(source, target)


Listing = dict[str, tuple[int, int]]


def listing(directory: Path) -> Listing:
    """Name to (bytes, time of the last change in nanoseconds) of everything below a directory, and of itself."""
    found = {}
    for path in [directory, *directory.rglob("*")]:
        status = path.stat()
        found[path.relative_to(directory).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found


def stopped(run: Callable[[], object]) -> bool:
    """Return True if ``run`` ends in a :class:`Crash`."""
    try:
        run()
    except Crash:
        return True
    return False
