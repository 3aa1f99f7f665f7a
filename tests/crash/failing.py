"""The workload with operations that fail: with a full disk, an I/O error, no descriptor left; once, or until it is lifted."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest import mock

import attrs

import msgstore
from crash.invariants import Broken, Situation, contents, demand
from crash.recording import index_class
from crash.running import Outcome, Workers, problem
from crash.workload import CHANGES, CrashCell, Run, Step, prepare, steps
from faults.injection import Fault, FaultyFiles, Injector, every_fault
from msgstore.contract import IndexContext
from msgstore.testing.faults import UnsyncedFiles
from support import Sample, open_with

KINDS = ("EIO", "EIO+", "ENOSPC", "ENOSPC+", "EMFILE", "EMFILE+")


def run_shared(workers: Workers, directory: Path, cell: CrashCell, durability: str, sample: Sample) -> tuple[int, Outcome]:
    """The number of operations, and what came of failing each with each error that it can meet."""
    whole = Injector()
    _run(directory / "whole", cell, durability, whole)
    todo = every_fault(whole.operations, KINDS)
    return len(whole.operations), workers.share(_work, directory, cell, durability, todo, sample)


def _work(
    directory: Path, cell: CrashCell, durability: str, todo: list[Fault], sample: Sample, share: int, shares: int
) -> Outcome:
    failures = []
    mine = sample.of(todo[share::shares])
    for fault in mine:
        injector = Injector(fault, tears=True)
        if failure := problem(partial(_run, directory / f"failing-{share}", cell, durability, injector)):
            failures.append(f"{fault}, {injector.failed}: {failure}")
    return Outcome(len(todo), len(mine), tuple(failures))


def unsynced_index(name: str) -> AbstractContextManager[object]:
    """LMDB syncs for itself, which is not what fails here, and takes longer than everything else."""
    kind = index_class(name)
    original = kind.__init__

    def make(index: object, context: IndexContext) -> None:
        original(index, attrs.evolve(context, sync=False))

    return mock.patch.object(kind, "__init__", make)


def _run(directory: Path, cell: CrashCell, durability: str, injector: Injector) -> None:
    """The whole workload; a call that fails is made again when the fault is lifted. Raises Broken, or what should not be."""
    shutil.rmtree(directory, ignore_errors=True)
    files = FaultyFiles(injector)
    run = Run(directory, cell, durability, files)
    prepare(run)
    try:
        with unsynced_index(cell.index), injector.armed():
            for step in steps(cell):
                if step[0] in CHANGES:
                    run.do(step)
                else:
                    _call(run, step, injector)
    finally:
        run.abandon()
    demand(not files.names, f"left open: {sorted(path.name for path in files.names.values())}")
    _check_the_end(run)


def _call(run: Run, step: Step, injector: Injector) -> None:
    try:
        run.do(step)
    except msgstore.StoreError as error:
        fault = injector.fault
        assert fault is not None
        demand(injector.struck, f"nothing failed, and yet: {error}")
        demand(str(run.path) in str(error), f"the error does not name the store: {error}")
        _, _, name = injector.failed.partition(" ")
        if not fault.lasts and name.endswith((".sqs", ".rdq")):
            demand(name in str(error), f"the error does not name the file {name}: {error}")
        if run.store is not None:
            demand(isinstance(error, msgstore.StoreIOError), f"not a StoreIOError: {error!r}")
            if fault.kind.startswith("ENOSPC"):
                _readable(run)
        elif fault.lasts and not run.cell.persistent:
            # What an opening removed it could not put back: as after a kill, the counts are the caller's to know.
            run.owed = attrs.evolve(run.owed, refcounts=tuple(run.owed.settled.items()))
        injector.lift()
        if run.store is not None:
            _readable(run)
        run.do(step)


def _readable(run: Run) -> None:
    for msg_id in run.owed.wanted:
        try:
            demand(run.client.read(msg_id) == run.bodies[msg_id], f"after a fault {msg_id.hex()} has wrong bytes")
        except msgstore.StoreClosed:  # the error came after the stop was complete, from the rename that RabbitMQ waits for
            return
        except msgstore.MsgStoreError as error:
            raise Broken(f"after a fault {msg_id.hex()} cannot be read: {error}") from error


def _check_the_end(run: Run) -> None:
    """The stop was clean in the end, whatever happened: everything is there, and every count."""
    store = open_with(run.path, UnsyncedFiles(), **run.cell.keys)
    try:
        found = {entry.msg_id: entry.references for entry in store.entries()}
        demand(found == run.owed.settled, "references after the last clean stop are others than those that were asked for")
        demand(store.stats().quarantined == 0, "a fault that was lifted has left a segment that looks damaged")
        contents(store, Situation(run.cell, run.bodies, run.owed), found)
    finally:
        store.abandon()
