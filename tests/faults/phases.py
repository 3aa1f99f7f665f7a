"""Phases: what is done while an operation fails, how a user goes on after it (closes the store, or has the process killed),
and the next openings."""

from __future__ import annotations

from collections.abc import Callable

import msgstore
from faults.history import change, changes
from faults.injection import FaultyFiles
from faults.model import Run, body_of
from msgstore.contract import Drop
from support import collect, combinable

PHASES = ("opening", "flush", "compact", "close", "unchanged")


def go(run: Run) -> None:
    """The phase of the cell, and the end of the store."""
    stores: list[msgstore.Store] = []
    files = FaultyFiles(run.injector)
    if run.cell.phase == "opening":
        with run.injector.armed():
            run.attempt("the opening", lambda: stores.append(run.open(files)))
    else:
        stores.append(run.open(files))
        run.model.settle({entry.msg_id: entry.references for entry in stores[0].entries()})
    for store in stores:
        run.forgotten = run.cell.index == "ets"
        if run.cell.phase != "opening":
            {"flush": _flush, "compact": _compact, "close": _close, "unchanged": _close}[run.cell.phase](run, store)
            _serves(run, store)
        _end(run, store)
    if files.names and not run.injector.interrupted:
        run.problems.append(f"left open: {sorted(path.name for path in files.names.values())}")


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
                run.problems += [f"remove does not find message {msg_id.hex()[:8]}.., which is there" for msg_id in error.ids]
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
        calls: dict[str, Callable[[], object]] = {
            "compact": lambda: store.compact(everything=True),
            "migrate": store.migrate,
            "combine": lambda: collect(store, *combinable(store)),
        }
        if all(run.attempt(name, call) is None for name, call in calls.items()):
            _drop(run, store)


def _drop(run: Run, store: msgstore.Store) -> None:
    """Drop the oldest segment, as a policy of retention does."""
    sealed = [segment.number for segment in store.segments() if segment.live_count and not segment.current]
    if sealed:
        lost = [e.msg_id for e in store.entries() if e.number == min(sealed) for _ in range(e.references)]
        error = run.attempt("drop", lambda: collect(store, Drop(min(sealed), "it is the oldest")))
        run.model.change(lost, -1, applied=True if error is None else None)
        if error is None:
            run.model.flushed()


def _close(run: Run, store: msgstore.Store) -> None:
    if run.cell.phase == "close":
        change(run.cell.rng("close"), store.client("late"), run.model, 12)
    with run.injector.armed():
        if run.attempt("close", store.close) is None:
            _closed(run)


def _closed(run: Run) -> None:
    """A call of ``close`` has returned."""
    if not run.injector.interrupted:  # else the store has ended as that of a killed process
        run.model.flushed()
        run.forgotten = False


def _serves(run: Run, store: msgstore.Store) -> None:
    """The open store has what the model has, if it is open."""
    try:
        run.compare(store, run.model.now, f"the {run.cell.phase}, in the open store,")
    except msgstore.StoreClosed:
        return
    except msgstore.MsgStoreError as error:
        run.problems.append(f"when the failure is over, the open store cannot be read: {error}")


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
        if not (run.injector.interrupted and isinstance(error, msgstore.StoreClosed)):
            run.problems.append(f"when the failure is over, close() raises {type(error).__name__}: {error}")
    error = run.attempt("abandon", store.abandon)
    if error is not None:
        run.problems.append(f"when the failure is over, abandon() raises {type(error).__name__}: {error}")


def check(run: Run) -> None:
    """Two openings without failures, each closed cleanly: what is there is what the model allows, and stays."""
    try:
        with run.open(sync_interval=0) as store:  # without a thread
            found = run.compare(store, run.model.kept, f"the {run.cell.phase}")
        run.forgotten = False
        with run.open(sync_interval=0) as store:
            run.compare(store, {msg_id: frozenset({count}) for msg_id, count in found.items()}, "a clean close")
    except msgstore.MsgStoreError as error:
        run.problems.append(f"the next opening raises {type(error).__name__}: {error}")
