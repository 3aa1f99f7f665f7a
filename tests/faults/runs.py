"""All operations of a phase and all kinds of failure, for one cell."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from faults.checking import check
from faults.history import Cell, Template, make_template
from faults.injection import KINDS, Fault, Injector, NeverEnds, can_fail, lmdb_through
from faults.phases import Run, go


@attrs.frozen
class Failure:
    cell: Cell
    fault: Fault | None
    operation: str
    """The one that failed, and its file."""
    problems: tuple[str, ...]

    @property
    def command(self) -> str:
        return self.cell.command + (f" --only {self.fault}" if self.fault else "")

    @property
    def kind(self) -> str:
        """The same for all failures that say the same of other messages and files."""
        problem = re.sub(r"/\S+|[0-9a-f]{8}\.\.|\d+", "#", self.problems[0])
        operation = re.sub(r"\d+", "#", self.operation)
        kind = self.fault.kind if self.fault else "no failure"
        return f"{self.cell.phase}, {self.cell.index}: {operation} {kind}: {problem}"

    def __str__(self) -> str:
        shown = "\n".join(f"    {problem}" for problem in self.problems[:3])
        more = f"\n    and {len(self.problems) - 3} more" if len(self.problems) > 3 else ""
        return f"  {self.command}\n    at {self.operation}:\n{shown}{more}"


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
        whole = _run(template, cell, scratch, None, outcome)
        outcome.operations = len(whole)
        faults = [Fault(n, kind) for n, (name, _) in enumerate(whole) for kind in kinds if can_fail(name, kind)]
        for fault in [only] if only else faults[cell.seed % every :: every]:
            _run(template, cell, scratch, fault, outcome)
    return outcome


def _run(template: Template, cell: Cell, scratch: Path, fault: Fault | None, outcome: Outcome) -> list[tuple[str, str]]:
    """One run. Returns the operations of the phase."""
    path = scratch / "run"
    shutil.copytree(template.path, path)
    injector = Injector(fault)
    killed = fault is not None and (fault.operation + KINDS.index(fault.kind) + cell.seed) % 2 == 1
    run = Run(cell, path, template.keys, template.model.copy(), template.forgotten, injector, killed)
    try:
        with lmdb_through(injector):
            go(run)
        check(run)
    except NeverEnds as error:
        run.tell([str(error)])
    outcome.runs += 1
    if run.problems:
        at = fault.operation if fault else len(injector.operations)
        name = " ".join(injector.operations[at]) if at < len(injector.operations) else "no operation"
        outcome.failures.append(Failure(cell, fault, name, tuple(run.problems)))
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
