"""All operations of a phase and all kinds of failure, for one cell: what is done while an operation fails, how a user goes on
after it (closes the store, or has the process killed), and the next openings."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

import msgstore
from crash.history import INDEXES, Run
from crash.model import Aftermath, Broken, compare
from faults.injection import KINDS, Fault, FaultyFiles, Injector, Interrupt, NeverEnds, every_fault, lmdb_through

PHASES = {
    "opening": ("", "open"),
    "flush": ("open settle", "change:10 flush change:10 flush"),
    "compact": ("open settle change:15 thin roll", "compact migrate combine drop"),
    "close": ("open settle change:12", "close"),
    "unchanged": ("open settle", "close"),
}
"""Name to what is done before, and what while an operation fails."""


@attrs.frozen
class Cell:
    """What one store is made for, and run with."""

    seed: int
    phase: str
    index: str
    durability: str

    def rng(self, purpose: str) -> random.Random:
        """The same for all phases and indexes: what differs between them is their own."""
        return random.Random(f"{self.seed} {purpose}")

    @property
    def command(self) -> str:
        return f"python -m faults --seeds {self.seed} --phase {self.phase} --index {self.index} --durability {self.durability}"


@attrs.frozen
class Failure:
    cell: Cell
    fault: Fault | None
    operation: str
    """The one that failed, and its file."""
    problems: tuple[str, ...]

    def __str__(self) -> str:
        command = self.cell.command + (f" --only {self.fault}" if self.fault else "")
        return f"  {command}\n    at {self.operation}:\n" + "\n".join(f"    {problem}" for problem in self.problems)


@attrs.define
class Outcome:
    """Of one cell."""

    cell: Cell
    operations: int = 0
    runs: int = 0
    failures: list[Failure] = attrs.field(factory=list)

    def __str__(self) -> str:
        c = self.cell
        counts = f"{self.operations} operations, {self.runs} runs, {len(self.failures)} failed"
        return f"seed {c.seed}, {c.phase}, {c.index}, {c.durability}: {counts}"


@attrs.define
class FaultRun(Run):
    """One run, with one failure or none."""

    injector: Injector = attrs.field(factory=Injector)
    is_armed: bool = False
    problems: list[str] = attrs.field(factory=list)

    def attempt(self, what: str, call: Callable[[], object]) -> BaseException | None:
        """Call; while armed, return what the call raised. Whatever is no error of ours is a problem."""
        if not self.is_armed:
            return super().attempt(what, call)
        try:
            with self.injector.armed():
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
        if self.injector.interrupted and what == "close":
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
            if not killed and self.injector.fault is not None and self.injector.fault.lasts:
                self.close()
            self.injector.is_over = True
            if killed or not self._closes():
                error = self.attempt("abandon", self.store.abandon)
                if error is not None:
                    self.problems.append(f"when the failure is over, abandon() raises {type(error).__name__}: {error}")
        assert isinstance(self.files, FaultyFiles)
        if self.files.names and not self.injector.interrupted:
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
            if not self.injector.interrupted:
                self.model.flush(closed=True)
            return True
        if not (self.injector.interrupted and isinstance(error, msgstore.StoreClosed)):
            self.problems.append(f"when the failure is over, close() raises {type(error).__name__}: {error}")
        return False


def make_template(cell: Cell, path: Path) -> FaultRun:
    """One to three openings of a store, each with changes, flushes and collections; closed after the last one, or killed."""
    rng = cell.rng("history")
    run = FaultRun(path, keys_of(cell, rng), rng)
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
            run.close()
    run.store = None
    return run


def keys_of(cell: Cell, rng: random.Random) -> dict[str, Any]:
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


def run_cell(cell: Cell, *, only: Fault | None = None, kinds: Sequence[str] = KINDS, every: int = 1) -> Outcome:
    """Each operation of the phase fails once for each kind; or ``every`` so many runs one is made; or ``only`` one is."""
    outcome = Outcome(cell)
    memory = Path("/dev/shm")
    log = logging.getLogger("msgstore")  # it has much to say of failing disks
    level = log.level
    log.setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory if memory.is_dir() else None) as scratch:
        template = make_template(cell, Path(scratch, "made"))
        whole = _run(template, Path(scratch, "run"), cell, None, outcome)
        outcome.operations = len(whole)
        for fault in [only] if only else every_fault(whole, kinds)[cell.seed % every :: every]:
            _run(template, Path(scratch, "run"), cell, fault, outcome)
    log.setLevel(level)
    return outcome


def _run(template: FaultRun, path: Path, cell: Cell, fault: Fault | None, outcome: Outcome) -> list[tuple[str, str]]:
    """One run on a copy. Returns the operations of the phase."""
    injector = Injector(fault)
    shutil.copytree(template.path, path)
    run = attrs.evolve(
        template, path=path, rng=cell.rng(cell.phase), model=template.model.copy(), files=FaultyFiles(injector), clients=[],
        injector=injector, problems=[],
    )  # fmt: skip
    killed = fault is not None and (fault.operation + KINDS.index(fault.kind) + cell.seed) % 2 == 1
    try:
        with lmdb_through(injector):
            run.go(cell.phase, killed=killed)
        Aftermath(run.model, {**run.keys, "sync_interval": "1h"}, f"the {cell.phase}").check(path)
    except (NeverEnds, Broken) as error:
        run.problems.append(str(error))
    except msgstore.MsgStoreError as error:
        run.problems.append(f"the next opening raises {type(error).__name__}: {error}")
    outcome.runs += 1
    if run.problems:
        outcome.failures.append(Failure(cell, fault, injector.failed or "no operation", tuple(run.problems)))
    shutil.rmtree(path)
    return injector.operations
