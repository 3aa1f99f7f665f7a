"""A store is stopped at every file operation of a workload, and opened on each directory that this leaves.

Many crash points leave the same directory and owe the same: what an operation changes is only there after it, and a look
changes nothing. Each is counted as a point; the store is opened once for all of them.

The harness can fail: what builds leave that are broken on purpose is caught. Such a build is an edit of a recorded log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from attempts import Outcome, Try
from crash.history import CRASH_CELLS, FOREIGN_CRASH_CELLS, is_persistent, keys_of
from crash.model import Aftermath, Model
from crash.recording import Operation, Recording, Tree, record
from crash.states import Disk, materialise, points
from msgstore.directory import LOCK
from support import WHOLE, Cell, Sample

pytestmark = pytest.mark.crash

both = pytest.mark.parametrize("durability", ["os", "fsync"])
cells = pytest.mark.parametrize("crash_cell", [*CRASH_CELLS, *FOREIGN_CRASH_CELLS], ids=str)


def crash_points(recording: Recording, directory: Path, sample: Sample = WHOLE, enough: int | None = None) -> Outcome:
    """Open the store at every crash point; at those of ``sample`` only."""
    outcome, persistent, keys = Outcome(), is_persistent(recording.cell), keys_of(recording.cell)

    def reopen(tree: Tree, after: Aftermath, number: int) -> None:
        path = directory / f"reopened-{number}"
        materialise(tree, path)
        after.check(path)

    def tries() -> Iterator[Try]:
        seen: set[int] = set()
        for label, tree, owed, left_by in points(recording):
            outcome.points += 1
            key = _key(tree, owed, left_by)
            if key not in seen:
                seen.add(key)
                if sample.has(len(seen)):
                    outcome.states += 1
                    passed = persistent or outcome.states % 2 == 1
                    after = Aftermath(owed, keys, left_by=left_by, at_boundary=persistent, pass_counts=passed)
                    yield label, partial(reopen, tree, after)

    return outcome.run(tries(), enough)


def _key(tree: Tree, owed: Model, left_by: str) -> int:
    """Of the directory and what is owed. Files of locks decide nothing: their processes are gone."""
    files = frozenset((name, state) for name, state in tree.items() if not name.endswith(("lock.mdb", LOCK)))
    counts = (frozenset(counts.items()) for counts in (owed.now, owed.kept, owed.flushed))
    return hash((files, *counts, owed.forgotten, left_by))


@both
@cells
def test_every_crash_point(crash_cell, durability, tmp_path, sample, report):
    """``os``: as killed processes leave the directory. ``fsync``: as power losses leave it, too."""
    recording = record(tmp_path, crash_cell, durability)
    outcome = crash_points(recording, tmp_path, sample)
    counts = f"{outcome.points} crash points, {outcome.states} different ones reopened, {len(outcome.failures)} failed"
    report("crash harness", f"{crash_cell} {durability}: {len(recording.log)} operations, {counts}")
    assert not outcome.failures, outcome.said
    assert outcome.points > 400


@both
@cells
def test_the_model_of_the_directory_is_the_directory(crash_cell, durability, tmp_path):
    """What the log says, operation by operation, is what is on disk at the end; and every kind of change was made."""
    recording = record(tmp_path, crash_cell, durability)
    disk = Disk(recording.initial)
    for operation in recording.log:
        disk.apply(operation)
    model = {name: state.whole for name, state in disk.now().items() if name != LOCK}
    assert model == {name: state.whole for name, state in recording.final.items()}
    kinds = {operation.kind for operation in recording.log}
    assert {"create", "pwrite", "truncate", "unlink", "replace", "sync", "pread"} <= kinds
    assert ("sync_directory" in kinds) >= (durability == "fsync")
    assert ("index" in kinds) == is_persistent(crash_cell)


# -- broken builds --------------------------------------------------------------------------------------------------------

LMDB, ETS = Cell("lmdb", "v2"), Cell("ets", "v2")
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
        if first is None and operation.kind == "pwrite" and operation.arguments[1] and operation.path.endswith(".sqs"):
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
    for operation in log:
        operation.owed.confirm(operation.owed.present)
    return log


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
        (confirm_before_write, LMDB, "os", "is gone"),
        (confirm_before_write, ETS, "os", "is gone"),
        (no_sync, ETS, "fsync", "is gone"),
        (no_sync_of_names, ETS, "fsync", "NotAdopted"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_broken_build_is_caught(build, crash_cell, durability, symptom, tmp_path):
    recording = record(tmp_path, crash_cell, durability)
    recording.log = build(recording.log)
    failures = crash_points(recording, tmp_path, enough=3).failures
    assert any(symptom in failure for failure in failures), failures
