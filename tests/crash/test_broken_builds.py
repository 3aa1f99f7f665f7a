"""The harness can fail: builds that are broken on purpose are caught by it."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest import mock

import pytest

import crash.recording
from crash.points import run
from crash.recording import Recorder, index_class, record
from crash.workload import CrashCell, Run

pytestmark = pytest.mark.crash

LMDB, ETS = CrashCell("lmdb", "v2"), CrashCell("ets", "v2")


class LateData(Recorder):
    """Data of new segments reaches its file only when the index has been committed."""

    def __init__(self, root, truth):
        super().__init__(root, truth)
        self._late: dict[int, list[tuple[bytes, int]]] = {}

    def create(self, path):
        fd = super().create(path)
        if path.suffix == ".sqs":
            self._late[fd] = []
        return fd

    def pwrite(self, fd, data, offset):
        if offset and fd in self._late:
            self._late[fd].append((bytes(data), offset))
        else:
            super().pwrite(fd, data, offset)

    def catch_up(self):
        for fd, writes in self._late.items():
            for data, offset in writes:
                super().pwrite(fd, data, offset)
            writes.clear()

    def size_and_mtime(self, fd):
        self.catch_up()
        return super().size_and_mtime(fd)

    def close(self, fd):
        self.catch_up()
        self._late.pop(fd, None)
        super().close(fd)

    def _copying(self, original):
        copying = super()._copying(original)

        def call(index, *arguments):
            try:
                return copying(index, *arguments)
            finally:
                self.catch_up()

        return call


@contextmanager
def index_committed_before_data():
    with mock.patch.object(crash.recording, "Recorder", LateData):
        yield


@contextmanager
def truncate_before_index():
    """The commit that follows a relocation is left to the one after it, which comes behind the truncation."""
    kind = index_class("lmdb")
    relocate, commit = kind.relocate, kind.commit
    relocated: list[bool] = []

    def relocating(index, ids, old, new):
        if ids:
            relocated.append(True)
        return relocate(index, ids, old, new)

    def committing(index):
        if relocated:
            relocated.clear()
        else:
            commit(index)

    with mock.patch.object(kind, "relocate", relocating), mock.patch.object(kind, "commit", committing):
        yield


@contextmanager
def confirm_before_write():
    write = Run.write

    def confirming(run, *numbers):
        write(run, *numbers)
        run.truth.confirm([crash.workload.id_of(number) for number in numbers])

    with mock.patch.object(Run, "write", confirming):
        yield


class Unsynced(Recorder):
    """Segments are never synced."""

    def sync(self, fd):
        if self.names[fd].suffix != ".sqs":
            super().sync(fd)


@contextmanager
def no_sync():
    with mock.patch.object(crash.recording, "Recorder", Unsynced):
        yield


class Nameless(Recorder):
    def sync_directory(self, path):
        pass


@contextmanager
def no_sync_of_names():
    with mock.patch.object(crash.recording, "Recorder", Nameless):
        yield


def failures(build: AbstractContextManager[None], cell: CrashCell, durability: str, tmp_path) -> tuple[str, ...]:
    """The build is broken while the workload runs; the stores are opened by a sound one."""
    with ExitStack() as stack:
        stack.enter_context(build)
        recording = record(tmp_path, cell, durability)
    return run(recording, tmp_path / "reopened", enough=3).failures


@pytest.mark.parametrize(
    ("build", "crash_cell", "durability", "symptom"),
    [
        (index_committed_before_data, LMDB, "os", "Broken"),
        (truncate_before_index, LMDB, "os", "Broken"),
        (confirm_before_write, LMDB, "os", "confirmed messages are missing"),
        (confirm_before_write, ETS, "os", "confirmed messages are missing"),
        (no_sync, ETS, "fsync", "confirmed messages are missing"),
        (no_sync_of_names, ETS, "fsync", "NotAdopted"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_broken_build_is_caught(build, crash_cell, durability, symptom, tmp_path):
    found = failures(build(), crash_cell, durability, tmp_path)
    assert any(symptom in failure for failure in found), found
