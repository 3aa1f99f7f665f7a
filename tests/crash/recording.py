"""The workload run once on a watching file layer: a log of operations with their data.

LMDB does its own input and output. Its files are copied before and after each call of the index that lets it write; what lies
in between is made by ``states``. A directory that LMDB syncs is noticed by ``os.fsync``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import attrs

from crash.files import WatchedFiles, index_calls
from crash.history import Run, workload
from crash.model import Model
from msgstore.directory import LOCK
from support import Cell, catalogue

CHANGES = ("create", "pwrite", "truncate", "unlink", "replace", "sync", "sync_directory")
"""Operations that change something, or decide what survives a power loss."""
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
    """Of all files but the lock's, whose text nothing trusts."""
    found = sorted(path for path in (directory / under).rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(directory).as_posix(): FileState.read(path) for path in found}


@attrs.frozen
class Operation:
    """One operation, and what was owed when it began."""

    kind: str
    path: str
    """Relative to the store."""
    owed: Model
    arguments: tuple[Any, ...] = ()
    """For ``index``: trees of LMDB's files before and after."""
    mtime: int = 0

    def __str__(self) -> str:
        data = self.arguments[0] if self.kind == "pwrite" else b""
        return f"{self.kind} {self.path}" + (f" at {self.arguments[1]}, {len(data)} bytes" if data else "")


class Recording(WatchedFiles):
    """The file layer of a run, which logs every operation. Files get times from a clock that ticks every few changes, as those
    of a real kernel do."""

    def __init__(self, cell: Cell, run: Run) -> None:
        super().__init__()
        self.cell, self.run = cell, run
        self.log: list[Operation] = []
        self.initial = read_tree(run.path)
        self.final: Tree = {}
        """The directory at the end, by which the model of the directory is checked."""
        self._changes = 0

    @property
    def bodies(self) -> dict[bytes, bytes]:
        """Of every message that was ever written."""
        model = self.run.model
        return {msg_id: model.body(msg_id) for msg_id in {*model.kept, *model.given}}

    def before(self, kind, path, fd, arguments):
        self._changes += kind in CHANGES
        if kind == "pwrite":
            arguments = bytes(arguments[0]), arguments[1]
        elif kind == "replace":
            arguments = (self._name(arguments[0]),)
        if kind != "overwrite":  # of the lock file
            self.note(kind, self._name(path), *arguments)

    def after(self, kind, path, fd):
        if kind in ("create", "pwrite", "truncate"):
            os.utime(fd, ns=(self.now, self.now))

    def note(self, kind: str, name: str, *arguments: Any) -> None:
        self.log.append(Operation(kind, name, attrs.evolve(self.run.model), arguments, self.now))

    @property
    def now(self) -> int:
        return 1_700_000_000 * 10**9 + self._changes // CHANGES_A_TICK * TICK

    def _name(self, path: Path) -> str:
        return path.relative_to(self.run.path).as_posix()

    def copying(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Copy LMDB's files around a call of the index."""

        def call(index: Any, *arguments: Any) -> Any:
            with self.busy:
                before, at = read_tree(self.run.path, "msgstore-lmdb"), len(self.log)
                self.note("index", name)
                try:
                    return original(index, *arguments)
                finally:
                    after = read_tree(self.run.path, "msgstore-lmdb")
                    self.log[at : at + 1] = [] if before == after else [attrs.evolve(self.log[at], arguments=(before, after))]

        return call

    def fsync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - Path.readlink would be of another thing
        if path.is_dir() and path.is_relative_to(self.run.path):
            self.note("sync_directory", self._name(path))


def record(directory: Path, cell: Cell, durability: str) -> Recording:
    """Run the workload in ``directory / "recorded"``, which is made."""
    run, steps = workload(cell, directory.resolve() / "recorded", durability)
    for path in run.path.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    run.files = recording = Recording(cell, run)
    index = catalogue().index(cell.index).load_factory()
    with index_calls(index, recording.copying), mock.patch.object(os, "fsync", recording.fsync):
        run.play(steps)
    assert not recording.names, f"left open: {recording.names}"
    recording.final = read_tree(run.path)
    return recording
