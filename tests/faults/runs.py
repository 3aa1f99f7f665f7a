"""All operations of a phase and all kinds of failure, for one cell."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from faults.history import make_template
from faults.injection import KINDS, Fault, Injector, NeverEnds, every_fault, lmdb_through
from faults.model import Cell, Run
from faults.phases import check, go


@attrs.frozen
class Failure:
    cell: Cell
    fault: Fault | None
    operation: str
    """The one that failed, and its file."""
    problems: tuple[str, ...]

    def __str__(self) -> str:
        command = self.cell.command + (f" --only {self.fault}" if self.fault else "")
        shown = "\n".join(f"    {problem}" for problem in self.problems[:3])
        more = f"\n    and {len(self.problems) - 3} more" if len(self.problems) > 3 else ""
        return f"  {command}\n    at {self.operation}:\n{shown}{more}"


@attrs.define
class Outcome:
    """Of one cell."""

    cell: Cell
    operations: int = 0
    runs: int = 0
    failures: list[Failure] = attrs.field(factory=list)

    def __str__(self) -> str:
        return f"{self.cell}: {self.operations} operations, {self.runs} runs, {len(self.failures)} failed"


def run_cell(cell: Cell, *, only: Fault | None = None, kinds: Sequence[str] = KINDS, every: int = 1) -> Outcome:
    """Each operation of the phase fails once for each kind; or ``every`` so many runs one is made; or ``only`` one is."""
    outcome = Outcome(cell)
    with _scratch() as scratch, _quiet():
        template = make_template(cell, scratch)
        whole = _run(template, scratch, None, outcome)
        outcome.operations = len(whole)
        for fault in [only] if only else every_fault(whole, kinds)[cell.seed % every :: every]:
            _run(template, scratch, fault, outcome)
    return outcome


def _run(template: Run, scratch: Path, fault: Fault | None, outcome: Outcome) -> list[tuple[str, str]]:
    """One run on a copy. Returns the operations of the phase."""
    path, cell, injector = scratch / "run", template.cell, Injector(fault)
    shutil.copytree(template.path, path)
    killed = fault is not None and (fault.operation + KINDS.index(fault.kind) + cell.seed) % 2 == 1
    run = attrs.evolve(
        template, path=path, model=template.model.copy(), injector=injector, killed=killed, problems=[]
    )  # fmt: skip
    try:
        with lmdb_through(injector):
            go(run)
        check(run)
    except NeverEnds as error:
        run.problems.append(str(error))
    outcome.runs += 1
    if run.problems:
        outcome.failures.append(Failure(cell, fault, injector.failed or "no operation", tuple(run.problems)))
    shutil.rmtree(path)
    return injector.operations


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The store has much to say of failing disks."""
    log = logging.getLogger("msgstore")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
