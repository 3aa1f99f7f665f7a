"""Any one file operation of a store may fail: nothing confirmed is lost, nothing removed comes back, counts stay.

Each file operation of a phase of a random store fails once for each kind of failure: what is done while it fails, how a user
goes on after it (closes the store, or has the process killed), and the next openings.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest

import msgstore
from attempts import Outcome, in_processes
from crash.files import KINDS, FaultyFiles, InjectedFault, Interrupt, every_fault
from crash.history import INDEXES, Run
from crash.model import Aftermath, Broken, compare, demand, differences
from msgstore.contract import StoreIOError
from msgstore.engine.state.accounting import LiveAccounting
from msgstore_ets_index.index import EtsIndex
from support import WHOLE, Sample

PHASES = {
    "opening": ("", "open"),
    "flush": ("open settle", "change:10 flush change:10 flush"),
    "compact": ("open settle change:15 thin roll", "compact migrate combine drop"),
    "close": ("open settle change:12", "close"),
    "unchanged": ("open settle", "close"),
}
"""Name to what is done before, and what while an operation fails."""


@attrs.frozen
class FaultCell:
    """What one store is made for, and run with."""

    seed: int
    phase: str
    index: str
    durability: str

    def rng(self, purpose: str) -> random.Random:
        """The same for all phases and indexes: what differs between them is their own."""
        return random.Random(f"{self.seed} {purpose}")

    def __str__(self) -> str:
        return f"{self.phase}-{self.index}-{self.durability} --fault-seeds {self.seed}"


@attrs.define
class FaultRun(Run):
    """One run, with one failure or none."""

    files: FaultyFiles = attrs.field(factory=FaultyFiles)
    is_armed: bool = False
    problems: list[str] = attrs.field(factory=list)

    def attempt(self, what: str, call: Callable[[], object]) -> BaseException | None:
        """Call; while armed, return what the call raised. Whatever is no error of ours is a problem."""
        if not self.is_armed:
            return super().attempt(what, call)
        try:
            with self.files.armed():
                call()
        except (msgstore.MsgStoreError, Interrupt) as error:
            if isinstance(error, msgstore.StoreIOError) and str(self.path) not in str(error):
                self.problems.append(f"the error of {what} does not name the store: {error}")
            if isinstance(error, msgstore.MessageNotFound):
                self.problems.append(f"{what} does not find what is there: {error}")
            return error
        except Exception as error:
            self.problems.append(f"{what} raised {type(error).__name__}, which is no error of msgstore: {error}")
            return error
        if self.files.interrupted and what == "close":
            return Interrupt()  # it has returned, and the store has ended as that of a killed process
        return None

    def collected(self, done: list[Any], *actions: Any) -> None:
        """While something fails, a collection may leave out what it had to do."""

    def go(self, phase: str, *, killed: bool) -> None:
        """Run a phase, and end the store: close it, first while the failure lasts if it does; or kill it."""
        before, during = PHASES[phase]
        self.play(before)
        self.is_armed = True
        self.play(during)
        if self.store is not None:
            if phase != "opening":
                self._serves(phase)
            if not killed and self.files.fault is not None and self.files.fault.lasts:
                self.play("close")
            self.files.is_over = True
            if killed or not self._closes():
                error = self.attempt("abandon", self.store.abandon)
                if error is not None:
                    self.problems.append(f"when the failure is over, abandon() raises {type(error).__name__}: {error}")
        if self.files.names and not self.files.interrupted:
            self.problems.append(f"left open: {sorted(path.name for path in self.files.names.values())}")

    def _serves(self, phase: str) -> None:
        """The open store has what the model has, if it is open."""
        try:
            compare(self.store, self.model, self.model.now, f"the {phase}, in the open store,")
        except msgstore.StoreClosed:
            return
        except (msgstore.MsgStoreError, Broken) as error:
            self.problems.append(f"when the failure is over, the open store: {error}")

    def _closes(self) -> bool:
        error = self.attempt("the last close", self.store.close)
        if error is None:
            if not self.files.interrupted:
                self.model.flush(closed=True)
            return True
        if not (self.files.interrupted and isinstance(error, msgstore.StoreClosed)):
            self.problems.append(f"when the failure is over, close() raises {type(error).__name__}: {error}")
        return False


def make_template(cell: FaultCell, path: Path) -> FaultRun:
    """One to three openings of a store, each with changes, flushes and collections; closed after the last one, or killed."""
    rng = cell.rng("history")
    run = FaultRun(path, fault_keys(cell, rng), rng)
    openings, old_format, other_index = rng.randint(1, 3), rng.random() < 0.3, rng.random() < 0.25
    index = cell.index
    if other_index and cell.phase == "opening":  # which then takes the counts over
        index = "lmdb" if index == "ets" else "ets"
    for left in reversed(range(openings)):
        old = {"format": "v1", "record": "message"} if old_format and (left or openings == 1) else {}
        run.open(index=INDEXES[index], **old)
        for _ in range(rng.randint(1, 3)):
            run.play(f"change:{rng.randint(10, 40)} flush")
            if rng.random() < 0.3:
                run.play(rng.choice(["roll", "compact", "migrate"]))
        if rng.random() < 0.3:
            run.play("change:8 kill" if not left and rng.random() < 0.6 else "kill")
        else:
            run.play("close")
    run.store = None
    return run


def fault_keys(cell: FaultCell, rng: random.Random) -> dict[str, Any]:
    return {
        "index": INDEXES[cell.index],
        "format": "v2",
        "record": rng.choice(["message", "message", "checksum"]),
        "durability": cell.durability,
        "file_size_limit": rng.choice([4096, 8192, 16384]),
        "large_message": 2000,
        "gc_interval": 0,
        "sync_interval": rng.choice(["1h", "1h", 0]),  # 0: each call flushes. Nothing is done by a thread of the store's
        "erase": rng.random() < 0.2,
    }


def run_cell(
    cell: FaultCell, directory: Path, *, only: str | None = None, kinds: Sequence[str] = KINDS, sample: Sample = WHOLE
) -> Outcome:
    """Each operation of the phase fails once for each kind; or those of ``sample`` do; or ``only`` one, such as ``42:EIO``."""
    template = make_template(cell, directory / "made")
    [(label, operations, error)] = in_processes([(f"{cell} without a failure", partial(_run, template, cell, None))])
    if error:
        return Outcome(0, 1, [f"{label}: {error}"])
    faults = sample.of(every_fault(operations, kinds))
    if only:
        number, _, kind = only.partition(":")
        faults = [InjectedFault(int(number), kind)]
    tries = (
        (f"{cell} --only-fault {fault}, at {' '.join(operations[fault.operation])}", partial(_run, template, cell, fault))
        for fault in faults
    )
    return Outcome(len(operations), len(faults)).run(tries)


def _run(template: FaultRun, cell: FaultCell, fault: InjectedFault | None, number: int) -> list[tuple[str, str]]:
    """One run on a copy. Returns the operations of the phase. Raises Broken; any other exception is a fault as well."""
    path = template.path.with_name(f"run-{number}")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template.path, path)
    files = FaultyFiles(fault)
    run = attrs.evolve(template, path=path, rng=cell.rng(cell.phase), model=attrs.evolve(template.model), files=files)
    killed = fault is not None and (fault.operation + KINDS.index(fault.kind) + cell.seed) % 2 == 1
    with files.through_lmdb():
        run.go(cell.phase, killed=killed)
    try:
        Aftermath(run.model, {**run.keys, "sync_interval": "1h"}, f"the {cell.phase}").check(path)
    except (Broken, msgstore.MsgStoreError) as error:
        run.problems.append(f"the next opening raises {type(error).__name__}: {error}")
    demand(not run.problems, "\n    ".join(run.problems))
    return files.operations


# -- tests -----------------------------------------------------------------------------------------------------------------

ONE, TWO = b"\x01" * 16, b"\x02" * 16
each_phase = pytest.mark.parametrize("phase", PHASES)
each_index = pytest.mark.parametrize("index_name", ["ets", "lmdb"])


@each_phase
@each_index
def test_store_after_some_faults_is_whole(phase, index_name, tmp_path):
    """A few failures of each phase; the others are for the environment crash."""
    sample = Sample(6 if phase == "unchanged" else 24, 4)
    outcome = run_cell(FaultCell(4, phase, index_name, "os"), tmp_path, kinds=["EIO", "ENOSPC"], sample=sample)
    assert outcome.states or phase == "unchanged", "nothing was made to fail"
    assert not outcome.failures, outcome.said


@pytest.mark.crash
@each_phase
@each_index
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_store_after_any_fault_is_whole(fault_seed, phase, index_name, durability, tmp_path, request):
    """``--fault-seeds 0-199`` has so many stores; a failure is told with the options that repeat it."""
    only = request.config.getoption("--only-fault")
    outcome = run_cell(FaultCell(fault_seed, phase, index_name, durability), tmp_path, only=only)
    assert not outcome.failures, outcome.said


def load_and_remove(index, load=EtsIndex.load):
    """Remove the saved index as soon as it is read: on a disk that goes on failing it cannot be put back."""
    state = load(index)
    index._context.files.unlink(index._path)
    return state


def commit_or_not(accounting, *arguments, commit=LiveAccounting.commit):
    """Confirm although the index was not committed."""
    with contextlib.suppress(OSError, StoreIOError):
        commit(accounting, *arguments)


@pytest.mark.slow
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
             "dies": lambda number: os.kill(os.getpid(), signal.SIGKILL)}  # fmt: skip
    found = {label: (result, error.partition(":")[0]) for label, result, error in in_processes(calls.items(), seconds=1)}
    assert found == {
        "fine": ("answer", ""),
        "raises": (None, "ZeroDivisionError"),
        "hangs": (None, "the process ended with exit status 1"),
        "dies": (None, "the process ended with exit status -9"),
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
