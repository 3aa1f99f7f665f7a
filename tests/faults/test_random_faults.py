"""Any one file operation of a store may fail: nothing confirmed is lost, nothing removed comes back, counts stay."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest

from crash.model import differences
from faults.injection import Fault
from faults.phases import PHASES, Cell, run_cell
from msgstore.contract import StoreIOError
from msgstore.engine.state.accounting import LiveAccounting
from msgstore_ets_index.index import EtsIndex

ONE, TWO = b"\x01" * 16, b"\x02" * 16


def said_of(outcome) -> str:
    return "\n".join(map(str, [outcome, *outcome.failures[:5]]))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("index_name", ["ets", "lmdb"])
def test_store_after_some_faults_is_whole(phase, index_name):
    """A few failures of each phase; the others are for the environment crash."""
    outcome = run_cell(Cell(4, phase, index_name, "os"), kinds=["EIO", "ENOSPC"], every=1 if phase == "unchanged" else 12)
    assert outcome.runs > 1 or phase == "unchanged", "nothing was made to fail"
    assert not outcome.failures, said_of(outcome)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("index_name", ["ets", "lmdb"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_store_after_any_fault_is_whole(seed, phase, index_name, durability):
    outcome = run_cell(Cell(seed, phase, index_name, durability))
    assert not outcome.failures, said_of(outcome)


def test_harness_finds_counts_that_openings_discard():
    """A build that removes the saved index as soon as it is read: on a disk that goes on failing it cannot be put back."""
    load = EtsIndex.load

    def load_and_remove(index):
        state = load(index)
        index._context.files.unlink(index._path)
        return state

    with mock.patch.object(EtsIndex, "load", load_and_remove):
        outcome = run_cell(Cell(3, "opening", "ets", "os"), kinds=["EIO+"], every=3)
    assert outcome.failures, said_of(outcome)
    assert "before the opening and" in said_of(outcome)
    assert "--seeds 3 --phase opening --index ets --durability os --only" in said_of(outcome)


def test_harness_finds_flushes_that_hide_errors():
    """A build that confirms although the index was not committed."""
    commit = LiveAccounting.commit

    def commit_or_not(ledger, *arguments):
        with contextlib.suppress(OSError, StoreIOError):
            commit(ledger, *arguments)

    with mock.patch.object(LiveAccounting, "commit", commit_or_not):
        outcome = run_cell(Cell(3, "flush", "lmdb", "os"), kinds=["ENOSPC", "ENOSPC+"], every=2)
    assert outcome.failures, said_of(outcome)
    assert "before the flush" in said_of(outcome)


def test_harness_repeats_one_failure_alone():
    outcome = run_cell(Cell(0, "unchanged", "ets", "os"), only=Fault.parse("3:EIO"))
    assert outcome.runs == 2, "a run without a failure, and the one that was asked for"


def test_differences_between_model_and_store_are_told():
    allowed = {ONE: frozenset({2}), TWO: frozenset({0})}
    assert differences(allowed, {ONE: 2}, "the close") == []
    assert differences(allowed, {ONE: 1, TWO: 1}, "the close") == [
        "message 01010101.. had count 2 before the close and is there with count 1",
        "message 02020202.. was removed before the close and is back with count 1",
    ]
    assert differences({}, {ONE: 1}, "the close") == ["message 01010101.. was never written and is there with count 1"]
    assert differences(allowed, {}, "the close") == ["message 01010101.. had count 2 before the close and is gone"]
