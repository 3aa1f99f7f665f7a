"""Counts the file operations of a phase, and makes one of them fail; or that one and all that come after it.

The engine's operations go through ``Files``. LMDB writes its file itself: while one call of its index fails, the descriptors of
``data.mdb`` lead to ``/dev/full``, or can only be read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import attrs

from crash.recording import WatchedFiles

LMDB_WRITES = ("lmdb.commit", "lmdb.close")
WRITES = ("pwrite", *LMDB_WRITES)
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
class Fault:
    operation: int
    kind: str

    @property
    def lasts(self) -> bool:
        return self.kind.endswith("+")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """From ``42:EIO``. Raises ValueError."""
        number, _, kind = text.partition(":")
        if kind not in KINDS:
            raise ValueError(f"{text}: the kind is one of {', '.join(KINDS)}")
        return cls(int(number), kind)

    def __str__(self) -> str:
        return f"{self.operation}:{self.kind}"


def every_fault(operations: Sequence[tuple[str, str]], kinds: Sequence[str]) -> list[Fault]:
    """Each operation in turn, with each kind of failure that it can have."""
    return [Fault(at, kind) for at, (name, _) in enumerate(operations) for kind in kinds if _can_fail(name, kind)]


def _can_fail(operation: str, kind: str) -> bool:
    needed = NEEDS.get(kind.removesuffix("+"))
    return needed is None or operation in needed


class Injector:
    """Counts while it is armed. At the operation of its fault the failure strikes."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.operations: list[tuple[str, str]] = []
        """(name, file) of each."""
        self.struck = False
        self.is_over = False
        """True once nothing fails any more, and nothing is counted."""
        self._armed = False

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
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def strike(self, name: str, file: str) -> str:
        """Count an operation. Return the kind of its failure, or "" if it succeeds. Raises Interrupt for INT."""
        if not self._armed or self.is_over:
            return ""
        self.operations.append((name, file))
        if len(self.operations) > ENDLESS:
            raise NeverEnds(f"after {ENDLESS} operations the phase has not ended")
        kind = self._kind(name)
        self.struck = self.struck or bool(kind)
        if kind == "INT":
            raise Interrupt
        return kind

    def _kind(self, name: str) -> str:
        if self.fault is None:
            return ""
        kind, number = self.fault.kind.removesuffix("+"), len(self.operations) - 1
        if number == self.fault.operation and _can_fail(name, kind):
            return kind
        if number > self.fault.operation and self.fault.lasts:
            kind = "ENOSPC" if kind == "SHORT" else kind
            return kind if _can_fail(name, kind) else ""
        return ""


class FaultyFiles(WatchedFiles):
    """Every operation goes through an injector."""

    def __init__(self, injector: Injector) -> None:
        super().__init__()
        self._injector = injector
        self._interrupts_after = False

    def before(self, kind, path, fd, arguments):
        failure = self._injector.strike(kind, (arguments[0] if kind == "replace" else path).name)
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


def _short(fd: int, size: int, offset: int) -> int:
    """Bytes of a short write. What overwrites others is cut between sectors: these are written whole or not at all."""
    if offset + size > os.fstat(fd).st_size:
        return size // 2
    return max(0, (offset + size // 2) // SECTOR * SECTOR - offset)


def system_error(kind: str) -> OSError:
    code = {"EIO": errno.EIO, "EMFILE": errno.EMFILE}.get(kind, errno.ENOSPC)
    return OSError(code, os.strerror(code))


@contextlib.contextmanager
def lmdb_through(injector: Injector) -> Iterator[None]:
    """LMDB's index opens, commits and closes through the injector, too."""
    from msgstore_lmdb_index.index import LmdbIndex

    with contextlib.ExitStack() as stack:
        for method in ("load", "commit", "close"):
            original = getattr(LmdbIndex, method)
            stack.enter_context(mock.patch.object(LmdbIndex, method, _through(injector, f"lmdb.{method}", original)))
        yield


def _through(injector: Injector, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(index: object, *arguments: Any) -> Any:
        kind = injector.strike(name, "data.mdb")
        fails = kind not in ("", "INT-AFTER")
        if fails and name == "lmdb.load":
            raise system_error(kind)
        with unwritable(kind) if fails else contextlib.nullcontext():
            result = original(index, *arguments)
        if kind == "INT-AFTER":
            raise Interrupt
        return result

    return call


@contextlib.contextmanager
def unwritable(kind: str) -> Iterator[None]:
    """Writes to ``data.mdb`` fail: on every descriptor, or (SHORT) on that of the page that LMDB writes last. SYNC: the others
    take writes, and cannot be synced."""
    descriptors = _lmdb_descriptors()
    if kind in ("SHORT", "SYNC"):
        last = [fd for fd in descriptors if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC]
        descriptors = (last if kind == "SHORT" else [fd for fd in descriptors if fd not in last]) or descriptors
    saved = [(fd, os.dup(fd), _unwritable(fd, kind)) for fd in descriptors]
    for fd, _, other in saved:
        os.dup2(other, fd, inheritable=False)
    try:
        yield
    finally:
        for fd, own, other in saved:
            if _is_same(fd, other):  # else it was closed meanwhile, and is perhaps another file's
                os.dup2(own, fd, inheritable=False)
            os.close(own)
            os.close(other)


def _unwritable(fd: int, kind: str) -> int:
    """Of the same file, to be read only; or of a full disk, or nothing that could be synced."""
    if kind == "EIO":
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    return os.open(os.devnull if kind == "SYNC" else "/dev/full", os.O_RDWR)


def _is_same(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _lmdb_descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each is slow
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").endswith("/data.mdb"):  # noqa: PTH115 - the same
                found.append(int(name))
    return found
