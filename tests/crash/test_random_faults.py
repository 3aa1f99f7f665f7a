"""Any one file operation of a store may fail: nothing confirmed is lost, nothing removed comes back, counts stay."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from unittest import mock

import pytest

from attempts import in_processes
from crash.faults import PHASES, FaultCell, run_cell
from crash.model import differences
from msgstore.contract import StoreIOError
from msgstore.engine.state.accounting import LiveAccounting
from msgstore_ets_index.index import EtsIndex
from support import Sample

ONE, TWO = b"\x01" * 16, b"\x02" * 16
each_phase = pytest.mark.parametrize("phase", PHASES)
each_index = pytest.mark.parametrize("index_name", ["ets", "lmdb"])


@each_phase
@each_index
def test_store_after_some_faults_is_whole(phase, index_name, tmp_path):
    """A few failures of each phase; the others are for the environment crash."""
    sample = Sample(1 if phase == "unchanged" else 12, 4)
    outcome = run_cell(FaultCell(4, phase, index_name, "os"), tmp_path, kinds=["EIO", "ENOSPC"], sample=sample)
    assert outcome.states or phase == "unchanged", "nothing was made to fail"
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.crash
@each_phase
@each_index
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_store_after_any_fault_is_whole(fault_seed, phase, index_name, durability, tmp_path, request):
    """``--fault-seeds 0-199`` has so many stores; a failure is told with the options that repeat it."""
    only = request.config.getoption("--only-fault")
    outcome = run_cell(FaultCell(fault_seed, phase, index_name, durability), tmp_path, only=only)
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.states}:\n" + "\n".join(outcome.failures[:5])


def load_and_remove(index, load=EtsIndex.load):
    """Remove the saved index as soon as it is read: on a disk that goes on failing it cannot be put back."""
    state = load(index)
    index._context.files.unlink(index._path)
    return state


def commit_or_not(accounting, *arguments, commit=LiveAccounting.commit):
    """Confirm although the index was not committed."""
    with contextlib.suppress(OSError, StoreIOError):
        commit(accounting, *arguments)


@pytest.mark.parametrize(
    ("owner", "name", "broken", "fault_cell", "kinds", "every", "symptom"),
    [
        (EtsIndex, "load", load_and_remove, FaultCell(3, "opening", "ets", "os"), ["EIO+"], 3, "before the opening and"),
        (LiveAccounting, "commit", commit_or_not, FaultCell(3, "flush", "lmdb", "os"), ["ENOSPC", "ENOSPC+"], 2,
         "before the flush"),
    ],
    ids=["counts that openings discard", "flushes that hide errors"],
)  # fmt: skip
def test_broken_build_fails_and_repeats_alone(owner, name, broken, fault_cell, kinds, every, symptom, tmp_path):
    with mock.patch.object(owner, name, broken):
        failed = run_cell(fault_cell, tmp_path, kinds=kinds, sample=Sample(every, fault_cell.seed)).failures
        assert any(symptom in text and str(fault_cell) in text for text in failed), failed
        only = failed[0].partition("--only-fault ")[2].partition(",")[0]
        again = run_cell(fault_cell, tmp_path / "again", only=only)
    assert (again.states, [text.partition(" raises ")[0] for text in again.failures]) == (
        1, [failed[0].partition(" raises ")[0]],
    )  # fmt: skip


def test_raised_died_and_hung_processes_are_reported():
    calls = {"fine": lambda number: "answer", "raises": lambda number: 1 / 0, "hangs": lambda number: threading.Event().wait(),
             "dies": lambda number: os.kill(os.getpid(), signal.SIGSEGV)}  # fmt: skip
    found = {label: (result, error.partition(":")[0]) for label, result, error in in_processes(calls.items(), seconds=1)}
    assert found == {
        "fine": ("answer", ""),
        "raises": (None, "ZeroDivisionError"),
        "hangs": (None, "the process ended with exit status 1"),
        "dies": (None, "the process ended with exit status -11"),
    }


def test_differences_between_model_and_store_are_told():
    allowed = {ONE: frozenset({2}), TWO: frozenset({0})}
    assert differences(allowed, {ONE: 2}, "the close") == []
    assert differences(allowed, {ONE: 1, TWO: 1, b"\x03" * 16: 1}, "the close") == [
        "message 01010101.. had count 2 before the close and is there with count 1",
        "message 02020202.. was removed before the close and is back with count 1",
        "message 03030303.. was never written and is there with count 1",
    ]
    assert differences(allowed, {}, "the close") == ["message 01010101.. had count 2 before the close and is gone"]
