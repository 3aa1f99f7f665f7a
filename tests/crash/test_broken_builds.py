"""The harness can fail: what builds leave that are broken on purpose is caught. Such a build is an edit of a recorded log."""

from __future__ import annotations

import attrs
import pytest

from crash.points import run
from crash.recording import Operation, record
from crash.workload import CrashCell

pytestmark = pytest.mark.crash

LMDB, ETS = CrashCell("lmdb", "v2"), CrashCell("ets", "v2")
Log = list[Operation]


def is_commit(operation: Operation) -> bool:
    return (operation.kind, operation.path) == ("index", "commit")


def index_committed_before_data(log: Log) -> Log:
    """Each commit comes before the appends that were made since the last one."""
    edited: Log = []
    first = None
    for operation in log:
        if is_commit(operation):
            edited.insert(len(edited) if first is None else first, operation)
            first = None
            continue
        if first is None and operation.kind == "pwrite" and operation.offset and operation.path.endswith(".sqs"):
            first = len(edited)
        edited.append(operation)
    return edited


def truncate_before_index(log: Log) -> Log:
    """Each truncation comes before the commit that it follows."""
    edited: Log = []
    for operation in log:
        commits = [at for at, earlier in enumerate(edited) if is_commit(earlier)]
        edited.insert(commits[-1] if operation.kind == "truncate" and commits else len(edited), operation)
    return edited


def confirm_before_write(log: Log) -> Log:
    """Each write is confirmed when it returns."""
    owed = [attrs.evolve(one.expected, confirmed=frozenset(one.expected.wanted)) for one in log]
    return [attrs.evolve(operation, expected=expected) for operation, expected in zip(log, owed, strict=True)]


def no_sync(log: Log) -> Log:
    """Segments are never synced."""
    return [operation for operation in log if operation.kind != "sync" or not operation.path.endswith(".sqs")]


def no_sync_of_names(log: Log) -> Log:
    return [operation for operation in log if operation.kind != "sync_directory"]


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
    recording = record(tmp_path, crash_cell, durability)
    broken = attrs.evolve(recording, log=build(recording.log))
    failures = run(broken, tmp_path / "reopened", enough=3).failures
    assert any(symptom in failure for failure in failures), failures
