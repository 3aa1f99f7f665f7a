"""The workload run once on a watching file layer: a log of operations with their data.

LMDB does its own input and output. Its files are copied before and after each call of the index that lets it write (``load``,
``commit``, ``close``); what lies in between is made by ``states``. A directory that anybody syncs is noticed by
``os.fsync``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs

from crash.history import CrashCell, Run, workload
from crash.model import Model
from msgstore.directory import LOCK
from msgstore.files import Files
from support import catalogue

CHANGES = ("create", "pwrite", "truncate", "unlink", "replace", "sync", "sync_directory")
"""Operations that change something, or decide what survives a power loss."""
COMPOSED = ("read_file", "write_file", "view", "identity", "closing")
"""Operations that call others, each of which is reported."""
OPENINGS = ("open_read", "open_write", "create")
SYNCS = ("sync", "sync_directory")
TICK = 4_000_000
"""Nanoseconds between two times that a file system can tell apart."""
CHANGES_A_TICK = 5


class WatchedFiles(Files):
    """Reports every operation, before and after it happens.

    Does not wait for the disk: a sync is reported, and nothing else is done. ``before`` may raise what the operating system
    would raise: then the operation does not happen.
    """

    def __init__(self) -> None:
        self.names: dict[int, Path] = {}
        """Path of each open descriptor."""
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
            result = None if kind in (*SYNCS, "close") else operation(subject, *arguments)
            if kind in OPENINGS:
                fd = result
                self.names[fd] = path
            self.after(kind, path, fd)
            return result

    return operate


for _kind in dir(Files):
    if not _kind.startswith("_") and _kind not in COMPOSED:
        setattr(WatchedFiles, _kind, _watched(_kind))


@attrs.frozen
class FileState:
    """A file as it can be on disk. Zeros at its end are not kept: LMDB's files are mostly that."""

    content: bytes
    size: int
    mtime: int

    @classmethod
    def read(cls, path: Path) -> FileState:
        data = path.read_bytes()
        return cls(data.rstrip(b"\0"), len(data), path.stat().st_mtime_ns)

    @property
    def whole(self) -> bytes:
        return self.content.ljust(self.size, b"\0")


Tree = dict[str, FileState]
"""Every file of a directory, by its name relative to it."""


def read_tree(directory: Path, under: str = "") -> Tree:
    found = sorted(path for path in (directory / under).rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): FileState.read(path) for path in found}


@attrs.frozen
class Operation:
    """One operation, and what was owed when it began."""

    kind: str
    path: str
    """Relative to the store."""
    owed: Model
    arguments: tuple[Any, ...] = ()
    inode: int = 0
    mtime: int = 0
    trees: tuple[Tree, Tree] | None = None
    """For ``index``: LMDB's files before and after."""
    lock: bytes | None = None
    """What the lock file holds."""

    def __str__(self) -> str:
        data = self.arguments[0] if self.kind == "pwrite" else b""
        return f"{self.kind} {self.path}" + (f" at {self.arguments[1]}, {len(data)} bytes" if data else "")


@attrs.frozen
class Recording:
    cell: CrashCell
    durability: str
    initial: Tree
    log: list[Operation]
    last: Model
    final: Tree
    """The directory at the end, by which the model of the directory is checked."""

    @property
    def bodies(self) -> dict[bytes, bytes]:
        """Of every message that was ever written."""
        return {msg_id: self.last.body(msg_id) for msg_id in {*self.last.kept, *self.last.given}}


class Recorder(WatchedFiles):
    """Logs every operation. Files get times from a clock that ticks every few changes, as those of a real kernel do."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.root = run.path
        self.log: list[Operation] = []
        self._inodes: dict[str, int] = {path.name: number for number, path in enumerate(sorted(run.path.iterdir()))}
        self._next_inode = len(self._inodes)
        self._of_descriptor: dict[int, int] = {}
        self._changes = 0

    def before(self, kind, path, fd, arguments):
        if kind == "overwrite":  # of the lock file: no opening trusts its text
            return
        name = self._name(path)
        inode = self._of_descriptor.get(fd, self._inodes.get(name, -1))
        if kind == "create":
            inode = self._next_inode
        self._changes += kind in CHANGES
        if kind == "pwrite":
            arguments = bytes(arguments[0]), arguments[1]
        elif kind == "replace":
            arguments = (self._name(arguments[0]),)
        self.note(kind, name, inode=inode, arguments=arguments)
        if kind == "create":
            self._inodes[name], self._next_inode = inode, inode + 1
        elif kind == "replace":
            self._inodes[arguments[0]] = self._inodes.pop(name)
        elif kind == "unlink":
            self._inodes.pop(name, None)

    def after(self, kind, path, fd):
        if kind in OPENINGS:
            self._of_descriptor[fd] = self._inodes[self._name(path)]
        if kind in ("create", "pwrite", "truncate"):
            os.utime(fd, ns=(self.now, self.now))

    def note(self, kind: str, name: str, **details: Any) -> None:
        lock = self.root / LOCK
        text = lock.read_bytes() if lock.exists() else None
        self.log.append(Operation(kind, name, self.run.model.copy(), mtime=self.now, lock=text, **details))

    @property
    def now(self) -> int:
        return 1_700_000_000 * 10**9 + self._changes // CHANGES_A_TICK * TICK

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    @contextlib.contextmanager
    def watching_the_index(self, index: str) -> Iterator[None]:
        """Copies of LMDB's files around every call of the index that may write them."""
        kind = index_class(index)
        with contextlib.ExitStack() as stack:
            for name in ("load", "commit", "close"):
                stack.enter_context(mock.patch.object(kind, name, self._copying(getattr(kind, name))))
            stack.enter_context(mock.patch.object(os, "fsync", self._fsync))
            yield

    def _copying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(index: Any, *arguments: Any) -> Any:
            with self.busy:
                before = self._lmdb()
                at = len(self.log)
                self.note("index", original.__name__)
                try:
                    return original(index, *arguments)
                finally:
                    after = self._lmdb()
                    if before == after:
                        del self.log[at]
                    else:
                        self.log[at] = attrs.evolve(self.log[at], trees=(before, after))

        return call

    def _lmdb(self) -> Tree:
        return read_tree(self.root, "msgstore-lmdb")

    def _fsync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - Path.readlink would be of another thing
        if path.is_dir() and path.is_relative_to(self.root):
            self.note("sync_directory", self._name(path))


def index_class(name: str) -> type[Any]:
    module, _, attribute = str(catalogue().index(name).factory).partition(":")
    return getattr(importlib.import_module(module), attribute)


def record(directory: Path, cell: CrashCell, durability: str) -> Recording:
    """Run the workload in ``directory / "recorded"``, which is made."""
    run, steps = workload(cell, directory.resolve() / "recorded", durability)
    for path in run.path.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    initial = read_tree(run.path)
    run.files = recorder = Recorder(run)
    with recorder.watching_the_index(cell.index):
        run.play(steps)
    assert not recorder.names, f"left open: {recorder.names}"
    return Recording(cell, durability, initial, recorder.log, run.model, read_tree(run.path))
