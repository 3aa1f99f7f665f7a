"""Sweeps over a workload: stop at every file operation, flip bits of each file. The store keeps its promises."""

from __future__ import annotations

import pytest

from crash import flips
from crash.points import run_shared
from crash.recording import record
from crash.running import Outcome
from crash.states import Disk
from crash.watching import CHANGES, COMPOSED, JOBS, LOCKS, LOOKS
from crash.workload import CRASH_CELLS, FOREIGN_CELLS
from msgstore.directory import LOCK
from msgstore.files import Files

pytestmark = pytest.mark.crash

both = pytest.mark.parametrize("durability", ["os", "fsync"])
cells = pytest.mark.parametrize("crash_cell", [*CRASH_CELLS, *FOREIGN_CELLS], ids=str)


def check(outcome: Outcome) -> None:
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.states}, of which:\n" + "\n".join(outcome.failures[:5])


@both
@cells
def test_every_crash_point(crash_cell, durability, tmp_path, workers, sample, tell):
    """``os``: as killed processes leave the directory. ``fsync``: as power losses leave it, too."""
    recording = record(tmp_path, crash_cell, durability)
    outcome = run_shared(workers, recording, tmp_path, sample)
    tell(
        f"{crash_cell} {durability}",
        f"{len(recording.log)} operations, {outcome.points} crash points, {outcome.states} different ones reopened"
        f", {len(outcome.failures)} failed",
    )
    check(outcome)
    assert outcome.points > 400


@pytest.mark.parametrize("crash_cell", CRASH_CELLS, ids=str)
def test_flipped_bit_costs_at_most_its_record(crash_cell, tmp_path, workers, sample, tell):
    """It is never served as a right body, and the store does not stop for it."""
    recording = record(tmp_path, crash_cell, "os")
    outcome = flips.run_shared(workers, recording, tmp_path, sample)
    tell(f"{crash_cell} flipped bits", f"{outcome.states} flips, {len(outcome.failures)} failed")
    check(outcome)
    assert outcome.states * sample.every > 500


@both
@cells
def test_the_model_of_the_directory_is_the_directory(crash_cell, durability, tmp_path):
    """What the log says, operation by operation, is what is on disk at the end; and every kind of change was made."""
    recording = record(tmp_path, crash_cell, durability)
    disk = Disk(recording.initial)
    for operation in recording.log:
        disk.apply(operation)
    model = {name: state.whole for name, state in disk.now().items() if name != LOCK}
    assert model == {name: state.whole for name, state in recording.final.items() if name != LOCK}
    kinds = {operation.kind for operation in recording.log}
    assert {"create", "pwrite", "truncate", "unlink", "replace", "sync", "pread"} <= kinds
    assert ("sync_directory" in kinds) >= (durability == "fsync")
    assert ("index" in kinds) == crash_cell.persistent


def test_the_harness_knows_every_file_operation():
    """One that is new has to be added to the watching layer, or nobody would stop inside it."""
    operations = {name for name in dir(Files) if not name.startswith("_")}
    assert operations == {*CHANGES, *LOOKS, *COMPOSED, *LOCKS, *JOBS}
