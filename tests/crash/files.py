"""A file layer that reports every operation, and one in which an operation fails: that one, or it and all that come after it.

LMDB writes its file itself: while one call of its index fails, the descriptors of ``data.mdb`` lead to ``/dev/full``, or can
only be read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import attrs

from msgstore.directory import LOCK
from msgstore.files import Files

COMPOSED = ("read_file", "write_file", "view", "identity", "closing")
"""Operations that call others, each of which is reported."""
OPENINGS = ("open_read", "open_write", "create")
INDEX_CALLS = ("load", "commit", "close")
"""Methods of an index in which LMDB may write."""


class WatchedFiles(Files):
    """Reports every operation, before and after it happens.

    Does not wait for the disk: a sync is reported, and nothing else is done. ``before`` may raise what the operating system
    would raise: then the operation does not happen.
    """

    def __init__(self) -> None:
        self.names: dict[int, Path] = {}
        """Path of each open descriptor, or what it was when the file was deleted."""
        self.busy = threading.RLock()

    def before(self, kind: str, path: Path, fd: int, arguments: tuple[Any, ...]) -> None:
        """Report an operation. Caller holds ``busy``. ``arguments``: those after the path or descriptor."""

    def after(self, kind: str, path: Path, fd: int) -> None:
        """Report that an operation succeeded. Caller holds ``busy``."""


def _watched(kind: str) -> Callable[..., Any]:
    """Return the method ``kind`` of ``WatchedFiles``."""

    def operate(self: WatchedFiles, subject: Path | int, *arguments: Any) -> Any:
        operation = getattr(super(WatchedFiles, self), kind)
        with self.busy:
            fd, path = (subject, self.names.get(subject, Path(LOCK))) if isinstance(subject, int) else (-1, subject)
            if kind == "close":  # a close that fails has closed the descriptor
                operation(fd)
                del self.names[fd]
            self.before(kind, path, fd, arguments)
            result = None if kind in ("sync", "sync_directory", "close") else operation(subject, *arguments)
            if kind in OPENINGS:
                fd = result
                self.names[fd] = path
            elif kind == "replace":
                self.names = {number: arguments[0] if name == path else name for number, name in self.names.items()}
            self.after(kind, path, fd)
            return result

    return operate


for _kind in dir(Files):
    if not _kind.startswith("_") and _kind not in COMPOSED:
        setattr(WatchedFiles, _kind, _watched(_kind))


@contextlib.contextmanager
def index_calls(kind: type[Any], around: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace each call of an index that may write by ``around(name, call)``."""
    with contextlib.ExitStack() as stack:
        for name in INDEX_CALLS:
            stack.enter_context(mock.patch.object(kind, name, around(name, getattr(kind, name))))
        yield


# -- failures ---------------------------------------------------------------------------------------------------------------

WRITES = ("pwrite", "lmdb.commit", "lmdb.close")
NEEDS = {
    "ENOSPC": ("create", "make_directory", "overwrite", "sync", "sync_directory", "replace", *WRITES),
    "SHORT": WRITES,
    "EMFILE": ("create", "open_read", "open_write", "list", "sync_directory", "lmdb.load"),
}
"""Which operations a failure comes from, unless it may come from all: a full disk cuts files and takes names away as before."""
KINDS = ("EIO", "EIO+", "ENOSPC", "ENOSPC+", "SHORT", "SHORT+", "EMFILE", "EMFILE+", "INT", "INT-AFTER")
"""SHORT: half of a write, then ENOSPC; of a commit of LMDB, its pages and not the page that makes them valid. INT:
KeyboardInterrupt before the operation, or after it. +: whatever comes later fails, too."""
SECTOR = 512
ENDLESS = 50_000
"""Operations after which a phase is taken for one that never ends."""


class Interrupt(KeyboardInterrupt):
    """A Ctrl-C of the harness."""


class NeverEnds(BaseException):
    """The phase goes on and on."""


@attrs.frozen
class InjectedFault:
    operation: int
    kind: str

    @property
    def lasts(self) -> bool:
        return self.kind.endswith("+")

    def __str__(self) -> str:
        return f"{self.operation}:{self.kind}"


def every_fault(operations: Sequence[tuple[str, str]], kinds: Sequence[str]) -> list[InjectedFault]:
    """Each operation in turn, with each kind of failure that it can have."""
    return [InjectedFault(at, kind) for at, (name, _) in enumerate(operations) for kind in kinds if _can_fail(name, kind)]


def _can_fail(operation: str, kind: str) -> bool:
    needed = NEEDS.get(kind.removesuffix("+"))
    return needed is None or operation in needed


class FaultyFiles(WatchedFiles):
    """Counts operations while it is armed. At the operation of its fault the failure strikes."""

    def __init__(self, fault: InjectedFault | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.operations: list[tuple[str, str]] = []
        """(name, file) of each."""
        self.struck = False
        self.is_over = False
        """True once nothing fails any more, and nothing is counted."""
        self._is_armed = False
        self._interrupts_after = False

    @property
    def failed(self) -> str:
        """The operation of the fault and its file, or "" if it was not reached."""
        at = len(self.operations) if self.fault is None else self.fault.operation
        return " ".join(self.operations[at]) if at < len(self.operations) else ""

    @property
    def interrupted(self) -> bool:
        return self.struck and self.fault is not None and self.fault.kind.startswith("INT")

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def strike(self, name: str, file: str) -> str:
        """Count an operation. Return the kind of its failure, or "" if it succeeds. Raises Interrupt for INT."""
        if not self._is_armed or self.is_over:
            return ""
        at, fault, kind = len(self.operations), self.fault, ""
        self.operations.append((name, file))
        if at >= ENDLESS:
            raise NeverEnds(f"after {ENDLESS} operations the phase has not ended")
        if fault is not None and (at == fault.operation or (at > fault.operation and fault.lasts)):
            kind = fault.kind.removesuffix("+")
            if kind == "SHORT" and at > fault.operation:
                kind = "ENOSPC"
            kind = kind if _can_fail(name, kind) else ""
        self.struck = self.struck or bool(kind)
        if kind == "INT":
            raise Interrupt
        return kind

    def before(self, kind, path, fd, arguments):
        failure = self.strike(kind, (arguments[0] if kind == "replace" else path).name)
        self._interrupts_after = failure == "INT-AFTER"
        if failure == "SHORT":
            data, offset = arguments
            os.pwrite(fd, data[: _short(fd, len(data), offset)], offset)
        if failure and not self._interrupts_after:
            raise system_error(failure)

    def after(self, kind, path, fd):
        if self._interrupts_after:
            self._interrupts_after = False
            raise Interrupt

    def through_lmdb(self) -> contextlib.AbstractContextManager[None]:
        """LMDB's index opens, commits and closes through this object, too."""
        from msgstore_lmdb_index.index import LmdbIndex

        def around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def call(index: object, *arguments: Any) -> Any:
                kind = self.strike(f"lmdb.{name}", "data.mdb")
                fails = kind not in ("", "INT-AFTER")
                if fails and name == "load":
                    raise system_error(kind)
                with unwritable(kind) if fails else contextlib.nullcontext():
                    result = original(index, *arguments)
                if kind == "INT-AFTER":
                    raise Interrupt
                return result

            return call

        return index_calls(LmdbIndex, around)


def _short(fd: int, size: int, offset: int) -> int:
    """Bytes of a short write. What overwrites others is cut between sectors: these are written whole or not at all."""
    if offset + size > os.fstat(fd).st_size:
        return size // 2
    return max(0, (offset + size // 2) // SECTOR * SECTOR - offset)


def system_error(kind: str) -> OSError:
    code = {"EIO": errno.EIO, "EMFILE": errno.EMFILE}.get(kind, errno.ENOSPC)
    return OSError(code, os.strerror(code))


@contextlib.contextmanager
def unwritable(kind: str) -> Iterator[None]:
    """Writes to ``data.mdb`` fail: on every descriptor, or (SHORT) on that of the page that LMDB writes last. SYNC: the others
    take writes, and cannot be synced."""
    found = {int(path.name): os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}  # noqa: PTH115
    descriptors = [fd for fd, target in found.items() if target.endswith("/data.mdb")]
    if kind in ("SHORT", "SYNC"):
        last = [fd for fd in descriptors if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC]
        descriptors = (last if kind == "SHORT" else [fd for fd in descriptors if fd not in last]) or descriptors
    saved = []
    for fd in descriptors:  # of the same file, to be read only; or of a full disk, or nothing that could be synced
        read_only = f"/proc/self/fd/{fd}", os.O_RDONLY
        other = os.open(*read_only if kind == "EIO" else (os.devnull if kind == "SYNC" else "/dev/full", os.O_RDWR))
        saved.append((fd, os.dup(fd), other))
        os.dup2(other, fd, inheritable=False)
    try:
        yield
    finally:
        for fd, own, other in saved:
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if os.path.sameopenfile(fd, other):  # else it is perhaps another file's
                    os.dup2(own, fd, inheritable=False)
            os.close(own)
            os.close(other)
