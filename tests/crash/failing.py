"""The workload with operations that fail: with a full disk, an I/O error, no descriptor left; once, or until it is lifted."""

from __future__ import annotations

import errno
import faulthandler
import os
import shutil
import traceback
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import attrs

import msgstore
from crash.invariants import Broken, Situation, contents, demand
from crash.points import Outcome
from crash.recording import index_class
from crash.states import torn_at
from crash.watching import CHANGES, LOOKS, WatchedFiles
from crash.workload import CrashCell, Run, Truth, is_change, prepare, steps
from msgstore.contract import IndexContext
from msgstore.testing.faults import UnsyncedFiles
from support import WHOLE, Sample, open_with

HANG = 60
"""Seconds after which a run of the workload is said to hang, and its process ended; it takes some hundredths of one."""
NEEDS = {
    errno.EIO: frozenset({*CHANGES, *LOOKS}),
    errno.ENOSPC: frozenset({"create", "pwrite", "sync", "replace", "make_directory", "sync_directory"}),
    errno.EMFILE: frozenset({"create", "open_read", "open_write", "read_file", "list", "sync_directory"}),
}
"""Which operations each error comes from: a full disk cuts files and takes names away as before."""


@attrs.frozen
class Fault:
    at: int
    """The number of the operation, from 0."""
    error: int
    lasting: bool
    """Whether every operation fails from then on that can, until the fault is lifted."""

    def __str__(self) -> str:
        return f"{errno.errorcode[self.error]} at operation {self.at}{' and ever after' if self.lasting else ''}"


class FailingFiles(WatchedFiles):
    """Counts operations and fails as ``fault`` says. Of a write that fails, about half is written, in whole sectors."""

    def __init__(self, fault: Fault | None) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.fault = fault
        self.lasting = fault is not None and fault.lasting
        self.failed = ""
        """What failed first."""

    def lift(self) -> None:
        self.fault = None

    def before(self, kind, path, *, fd=-1, offset=0, data=b"", target=None):
        fault, at = self.fault, len(self.kinds)
        self.kinds.append(kind)
        if fault is None or kind not in NEEDS[fault.error] or not (at == fault.at or (fault.lasting and at > fault.at)):
            return
        self.failed = self.failed or f"{kind} {path.name}"
        if kind == "pwrite" and (cuts := torn_at(offset, len(data))):
            os.pwrite(fd, data[: cuts[len(cuts) // 2]], offset)
        raise OSError(fault.error, os.strerror(fault.error))


def kinds_of_operations(directory: Path, cell: CrashCell, durability: str) -> list[str]:
    """Of every operation of the workload when nothing fails."""
    files = FailingFiles(None)
    _run(directory, cell, durability, files)
    return files.kinds


def faults(kinds: list[str]) -> Iterator[Fault]:
    """Each operation in turn, with each error that it can meet."""
    for at, kind in enumerate(kinds):
        for error, needed in NEEDS.items():
            if kind in needed:
                yield Fault(at, error, lasting=False)
                yield Fault(at, error, lasting=True)


def run_shared(
    workers: Executor, shares: int, directory: Path, cell: CrashCell, durability: str, *, sample: Sample = WHOLE
) -> tuple[int, Outcome]:
    """The number of operations, and what came of failing each."""
    kinds = kinds_of_operations(directory / "whole", cell, durability)
    todo = list(faults(kinds))
    jobs = [
        workers.submit(_work, directory / f"failing-{share}", cell, durability, sample.of(todo[share::shares]))
        for share in range(shares)
    ]
    outcomes = [job.result() for job in jobs]
    return len(kinds), Outcome(len(todo), sum(one.states for one in outcomes), sum((one.failures for one in outcomes), ()))


def unsynced_index(name: str) -> AbstractContextManager[object]:
    """LMDB syncs for itself, which is not what fails here, and takes longer than everything else."""
    kind = index_class(name)
    original = kind.__init__

    def make(index: object, context: IndexContext) -> None:
        original(index, attrs.evolve(context, sync=False))

    return mock.patch.object(kind, "__init__", make)


def _work(directory: Path, cell: CrashCell, durability: str, todo: list[Fault]) -> Outcome:
    failures = []
    for fault in todo:
        files = FailingFiles(fault)
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            _run(directory, cell, durability, files)
        except Exception as error:  # whatever it is, it is not what a store may do
            lines = "".join(traceback.format_exception(error)[-3:])
            failures.append(f"{fault}, {files.failed}: {type(error).__name__}: {error}\n{lines}")
    faulthandler.cancel_dump_traceback_later()
    return Outcome(len(todo), len(todo), tuple(failures))


def _run(directory: Path, cell: CrashCell, durability: str, files: FailingFiles) -> None:
    """The whole workload; a call that fails is made again when the fault is lifted. Raises Broken, or what should not be."""
    shutil.rmtree(directory, ignore_errors=True)
    truth = Truth()
    run = Run(directory, cell, durability, files, truth)
    prepare(run)
    try:
        with unsynced_index(cell.index):
            for step in steps(cell):
                if is_change(step):
                    step(run)
                else:
                    _call(run, step, files)
    finally:
        files.lift()
        run.abandon()
    demand(not files.names, f"left open: {sorted(path.name for path in files.names.values())}")
    _check_the_end(run)


def _call(run: Run, step, files: FailingFiles) -> None:
    try:
        step(run)
    except msgstore.StoreError as error:
        demand(files.failed, f"nothing failed, and yet: {error}")
        demand(str(run.path) in str(error), f"the error does not name the store: {error}")
        _, _, name = files.failed.partition(" ")
        if not files.lasting and name.endswith((".sqs", ".rdq")):
            demand(name in str(error), f"the error does not name the file {name}: {error}")
        if run.store is not None:
            demand(isinstance(error, msgstore.StoreIOError), f"not a StoreIOError: {error!r}")
            if files.fault is not None and files.fault.error == errno.ENOSPC:
                _readable(run)
        if run.store is None and files.fault is not None and files.fault.lasting and not run.cell.persistent:
            # What an opening removed it could not put back: as after a kill, the counts are the caller's to know.
            run.truth.refcounts = tuple(run.truth.settled.items())
        files.lift()
        if run.store is not None:
            _readable(run)
        step(run)


def _readable(run: Run) -> None:
    for msg_id in run.truth.wanted:
        try:
            demand(run.client.read(msg_id) == run.truth.bodies[msg_id], f"after a fault {msg_id.hex()} has wrong bytes")
        except msgstore.StoreClosed:  # the error came after the stop was complete, from the rename that RabbitMQ waits for
            return
        except msgstore.MsgStoreError as error:
            raise Broken(f"after a fault {msg_id.hex()} cannot be read: {error}") from error


def _check_the_end(run: Run) -> None:
    """The stop was clean in the end, whatever happened: everything is there, and every count."""
    store = open_with(run.path, UnsyncedFiles(), **run.cell.keys)
    try:
        found = {entry.msg_id: entry.references for entry in store.entries()}
        demand(found == run.truth.settled, "references after the last clean stop are others than those that were asked for")
        demand(store.stats().quarantined == 0, "a fault that was lifted has left a segment that looks damaged")
        contents(store, Situation(run.cell, run.truth.bodies, run.truth.now()), found)
    finally:
        store.abandon()
