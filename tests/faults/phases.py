"""What is done while an operation fails, and how a user goes on after it: closes the store, or has the process killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

import msgstore
from faults.history import Cell, change, changes, open_store
from faults.injection import FaultyFiles, Injector, Interrupt
from faults.model import Model, body_of, differences
from msgstore.files import Files

PHASES = ("opening", "flush", "compact", "close", "unchanged")


@attrs.define
class Run:
    """One run of a phase on a copy of a template, with one failure or with none."""

    cell: Cell
    path: Path
    keys: dict[str, Any]
    model: Model
    forgotten: bool
    """Whether the next opening needs the counts."""
    injector: Injector
    killed: bool
    """How a store ends that is still open after the phase: killed, or closed."""
    problems: list[str] = attrs.field(factory=list)
    _said: set[str] = attrs.field(factory=set)

    def tell(self, problems: Iterable[str]) -> None:
        self.problems += problems

    def open(self, files: Files | None = None, **keys: Any) -> msgstore.Store:
        return open_store(self.path, self.keys | keys, files, self.model.refcounts() if self.forgotten else None)

    def attempt(self, what: str, call: Callable[[], object]) -> BaseException | None:
        """Returns what the call raised. Whatever is no error of ours is a problem."""
        try:
            call()
        except (msgstore.MsgStoreError, Interrupt) as error:
            return error
        except Exception as error:
            self.tell([f"{what} raised {type(error).__name__}, which is no error of msgstore: {error}"])
            return error
        return None

    @property
    def interrupted(self) -> bool:
        fault = self.injector.fault
        return fault is not None and fault.interrupts and self.injector.struck


def go(run: Run) -> None:
    """The phase of the cell, and the end of the store."""
    if run.cell.phase == "opening":
        _opening(run)
    else:
        store = run.open(FaultyFiles(run.injector))
        run.model.settle({entry.msg_id: entry.references for entry in store.entries()})
        run.forgotten = run.cell.index == "ets"
        {"flush": _flush, "compact": _compact, "close": _close, "unchanged": _close}[run.cell.phase](run, store)
        _serves(run, store)
        _end(run, store)


def _opening(run: Run) -> None:
    stores: list[msgstore.Store] = []
    with run.injector.armed():
        run.attempt("the opening", lambda: stores.append(run.open(FaultyFiles(run.injector))))
    for store in stores:
        run.forgotten = run.cell.index == "ets"
        _end(run, store)


def _flush(run: Run, store: msgstore.Store) -> None:
    rng, model = run.cell.rng("flush"), run.model
    clients = [store.client(on_confirm=model.told), store.client("second")]
    for _ in range(2):
        for by, ids in changes(rng, model, 10):
            client = rng.choice(clients)
            with run.injector.armed():
                if by > 0:
                    error = run.attempt("write", lambda: client.write(ids[0], body_of(ids[0])))  # noqa: B023 - called at once
                else:
                    error = run.attempt("remove", lambda: client.remove(ids))  # noqa: B023
            if isinstance(error, msgstore.MessageNotFound):
                run.tell([f"remove does not find message {msg_id.hex()[:8]}.., which is there" for msg_id in error.ids])
            refused = isinstance(error, msgstore.StoreClosed)
            model.change(ids, by, applied=True if error is None else False if refused else getattr(error, "applied", None))
            if error is None and not run.keys["sync_interval"]:
                model.flushed()
        with run.injector.armed():
            if run.attempt("flush", store.flush) is None:
                model.flushed()


def _compact(run: Run, store: msgstore.Store) -> None:
    rng = run.cell.rng("compact")
    client = store.client()
    change(rng, client, run.model, 15)
    present = run.model.present
    garbage = rng.sample(present, len(present) // 3)
    client.remove(garbage)
    run.model.change(garbage, -1)
    store.roll()
    run.model.flushed()
    with run.injector.armed():
        if run.attempt("compact", lambda: store.compact(everything=True)) is None:
            run.attempt("migrate", store.migrate)


def _close(run: Run, store: msgstore.Store) -> None:
    if run.cell.phase == "close":
        change(run.cell.rng("close"), store.client("late"), run.model, 12)
    with run.injector.armed():
        if run.attempt("close", store.close) is None:
            _closed(run)


def _closed(run: Run) -> None:
    """A call of ``close`` has returned."""
    if not run.interrupted:  # else the store has ended as that of a killed process
        run.model.flushed()
        run.forgotten = False


def _serves(run: Run, store: msgstore.Store) -> None:
    """The open store has what the model has, if it is open."""
    try:
        client = store.client()
        found = {msg_id: store.references(msg_id) for msg_id in run.model.now}
        bodies = client.read_many([msg_id for msg_id, count in found.items() if count])
    except msgstore.StoreClosed:
        return
    except msgstore.MsgStoreError as error:
        run.tell([f"when the failure is over, the open store cannot be read: {error}"])
        return
    since = f"the {run.cell.phase}, in the open store,"
    run.tell(differences(run.model.now, {msg_id: count for msg_id, count in found.items() if count}, since))
    run.tell(f"message {msg_id.hex()[:8]}.. is read with other bytes" for msg_id in bodies if bodies[msg_id] != body_of(msg_id))


def _end(run: Run, store: msgstore.Store) -> None:
    """Close, first while the failure lasts if it does; or let go as a killed process does."""
    fault = run.injector.fault
    if not run.killed:
        if fault is not None and fault.lasts:
            with run.injector.armed():
                run.attempt("close", store.close)
        error = run.attempt("close", store.close)
        if error is None:
            _closed(run)
            return
        if not (run.interrupted and isinstance(error, msgstore.StoreClosed)):
            run.tell([f"when the failure is over, close() raises {type(error).__name__}: {error}"])
    error = run.attempt("abandon", store.abandon)
    if error is not None:
        run.tell([f"when the failure is over, abandon() raises {type(error).__name__}: {error}"])
