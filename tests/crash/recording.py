"""The workload run once on a watching file layer: a log of operations with their data.

LMDB does its own input and output. Its files are copied before and after each call of the index that lets it write (``load``,
``commit``, ``close``); what lies in between is made by ``states``. A directory that anybody syncs is noticed by
``os.fsync``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs

from crash.watching import LOOKS, WatchedFiles
from crash.workload import CrashCell, Expected, Run, prepare, steps
from msgstore.directory import LOCK
from support import catalogue

TICK = 4_000_000
"""Nanoseconds between two times that a file system can tell apart."""
CHANGES_A_TICK = 5


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
    return {
        path.relative_to(directory).as_posix(): FileState.read(path)
        for path in sorted((directory / under).rglob("*"))
        if path.is_file()
    }


@attrs.frozen
class Operation:
    """One operation, and what was owed when it began."""

    kind: str
    path: str
    """Relative to the store."""
    expected: Expected
    inode: int = 0
    offset: int = 0
    """The new size for ``truncate``, the new time for ``set_mtime``."""
    data: bytes = b""
    target: str = ""
    mtime: int = 0
    trees: tuple[Tree, Tree] | None = None
    """For ``index``: LMDB's files before and after."""
    lock: bytes | None = None
    """What the lock file holds."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}" + (f" at {self.offset}, {len(self.data)} bytes" if self.kind == "pwrite" else "")


@attrs.frozen
class Recording:
    cell: CrashCell
    durability: str
    initial: Tree
    log: list[Operation]
    bodies: dict[bytes, bytes]
    last: Expected
    final: Tree
    """The directory at the end, by which the model of the directory is checked."""


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

    def before(self, kind, path, *, fd=-1, offset=0, data=b"", target=None):
        name = self._name(path)
        inode = self._of_descriptor.get(fd, self._inodes.get(name, -1))
        if kind == "create":
            inode = self._next_inode
        self._changes += kind not in LOOKS
        self.note(kind, name, inode=inode, offset=offset, data=data, target=self._name(target) if target else "")
        if kind == "create":
            self._inodes[name], self._next_inode = inode, inode + 1
        elif kind == "replace":
            self._inodes[self._name(target)] = self._inodes.pop(name)
        elif kind == "unlink":
            self._inodes.pop(name, None)

    def after(self, kind, path, *, fd=-1):
        if kind in ("open_read", "open_write", "create"):
            self._of_descriptor[fd] = self._inodes[self._name(path)]
        if kind in ("create", "pwrite", "truncate"):
            os.utime(fd, ns=(self.now, self.now))

    def note(self, kind: str, name: str, **details: Any) -> None:
        lock = self.root / LOCK
        text = lock.read_bytes() if lock.exists() else None
        self.log.append(Operation(kind, name, self.run.owed, mtime=self.now, lock=text, **details))

    @property
    def now(self) -> int:
        return 1_700_000_000 * 10**9 + self._changes // CHANGES_A_TICK * TICK

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    @contextlib.contextmanager
    def watching_the_index(self, index: str) -> Iterator[None]:
        """Copies of LMDB's files around every call of the index that may write them."""
        with contextlib.ExitStack() as stack:
            for name in ("load", "commit", "close"):
                original = getattr(index_class(index), name)
                stack.enter_context(mock.patch.object(index_class(index), name, self._copying(original)))
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
    run = Run(directory.resolve() / "recorded", cell, durability, None)
    prepare(run)
    for path in run.path.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    initial = read_tree(run.path)
    recorder = run.files = Recorder(run)
    with recorder.watching_the_index(cell.index):
        for step in steps(cell):
            run.do(step)
    assert not recorder.names, f"left open: {recorder.names}"
    return Recording(cell, durability, initial, recorder.log, run.bodies, run.owed, read_tree(run.path))
