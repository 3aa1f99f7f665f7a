"""Histories of a store: steps that change the directory and the model alike, and the workload whose crash points are tried.

A *change* (write, remove) happens in memory. All other steps do input and output; where ``sync_interval`` is an hour and no
thread collects, nothing else does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from crash.model import Model
from msgstore.contract import Action, Capability, Drop
from msgstore.directory import Settings, write_settings
from msgstore.engine.compact.policy_actions import numbers_of
from msgstore.files import Files
from msgstore.testing.faults import UnsyncedFiles
from support import CELLS, DATA, Cell, RealDirectory, catalogue, collect, combinable, needs_foreign, open_with

CLIENTS = ("first", "second", None)
INDEXES: dict[str, Any] = {"ets": "ets", "lmdb": {"use": "lmdb", "map_size": "1MiB"}, "sqlite": "sqlite"}
"""Name to the key of a configuration. The map is small, so that copies of a directory are."""


CRASH_CELLS = list(CELLS.values())
"""With v1: in the directory are segments of a broker, and the store writes v2."""
FOREIGN_CRASH_CELLS = [pytest.param(Cell(index, "ledger"), marks=needs_foreign) for index in ("ets", "lmdb")]
"""A format with a header of 4096 bytes."""


def keys_of(cell: Cell) -> dict[str, Any]:
    """Return keywords of ``open_store``: small segments, and no thread that flushes or collects: a commit between two steps
    would be a flush boundary that the model does not know."""
    return {
        "index": INDEXES[cell.index], "format": "v2" if cell.format == "v1" else cell.format, "record": cell.record,
        "file_size_limit": 2136 + (cell.header or 64), "large_message": 900, "sync_interval": "1h", "gc_interval": 0,
    }  # fmt: skip


def is_persistent(cell: Cell) -> bool:
    """Return True if counts and removals survive a crash."""
    return Capability.PERSISTENT in catalogue().index(cell.index).capabilities


@attrs.define
class Run:
    """A store's directory with what has to be in it. Each step of a history is a method; a random number decides the rest."""

    path: Path
    keys: dict[str, Any]
    rng: random.Random
    model: Model = attrs.field(factory=Model)
    files: Files | None = None
    store: Any = None
    clients: list[msgstore.Client] = attrs.Factory(list)

    def play(self, steps: str) -> None:
        """Names of calls of the store and of methods, in order. ``change:9`` calls ``change(9)``."""
        for name, number in re.findall(r"(\w+)(?::(\d+))?", steps):
            if name in FLUSHING:
                self._flushing(name, partial(FLUSHING[name], self))
            else:
                getattr(self, name)(*([int(number)] if number else []))

    def attempt(self, what: str, call: Callable[[], object]) -> BaseException | None:
        """Call. A run that injects faults returns what the call raised."""
        call()
        return None

    def open(self, **keys: Any) -> None:
        counts = self.model.highest if self.model.forgotten else None

        def act() -> None:
            self.store = open_with(self.path, self.files, refcounts=counts, **self.keys | keys)

        self.clients = []
        if self.attempt("the opening", act) is None:
            self.model.forgotten = (keys.get("index") or self.keys["index"]) == "ets"

    def open_erasing(self) -> None:
        self.open(erase=True)

    def settle(self) -> None:
        self.model.settle({entry.msg_id: entry.references for entry in self.store.entries()})

    def change(self, number: int) -> None:
        """So many calls of clients."""
        if not self.clients:
            names = CLIENTS[: self.rng.randint(1, 3)]
            self.clients = [self.store.client(name, on_confirm=lambda ids: self.model.confirm(ids)) for name in names]
        for by, ids in changes(self.rng, self.model, number):
            client = self.rng.choice(self.clients)
            call = partial(client.write, ids[0], self.model.body(ids[0])) if by > 0 else partial(client.remove, ids)
            error = self.attempt("write" if by > 0 else "remove", call)
            refused = isinstance(error, msgstore.StoreClosed)
            self.model.change(ids, by, applied=True if error is None else False if refused else getattr(error, "applied", None))
            if error is None and not self.keys["sync_interval"]:
                self.model.flush()

    def thin(self) -> None:
        """Remove a third of the messages, once."""
        present = self.model.present
        garbage = self.rng.sample(present, len(present) // 3)
        self.clients[0].remove(garbage)
        self.model.change(garbage, -1)

    def drop(self) -> None:
        """Drop the oldest segment, as a policy of retention does."""

        def act() -> None:
            sealed = [segment.number for segment in self.store.segments() if segment.live_count and not segment.current]
            if sealed:
                dropped = [entry for entry in self.store.entries() if entry.number == min(sealed)]
                self.model.change([e.msg_id for e in dropped for _ in range(e.references)], -1, applied=None)
                self.carry_out(Drop(min(sealed), "it is the oldest"))
                self.model.gone(e.msg_id for e in dropped)

        self._flushing("drop", act)

    def carry_out(self, *actions: Action) -> None:
        self.collected(collect(self.store, *actions), *actions)

    def collected(self, done: list[Any], *actions: Action) -> None:
        """Called with the results of a collection, and what it had to do."""
        assert not [one.skipped for one in done if one.skipped], done
        left = {segment.number for segment in self.store.segments()}
        assert not [action for action in actions if left.issuperset(numbers_of(action))], f"{actions} were not carried out"

    def _flushing(self, what: str, call: Callable[[], object]) -> None:
        if self.attempt(what, call) is None:
            self.model.flush(closed=what == "close")

    def kill(self) -> None:
        self.store.abandon()
        self.model.killed()


FLUSHING: dict[str, Callable[[Run], object]] = {
    "flush": lambda run: run.store.flush(),
    "roll": lambda run: run.store.roll(),
    "compact": lambda run: run.collected(run.store.compact(everything=True)),
    "migrate": lambda run: run.collected(run.store.migrate()),
    "combine": lambda run: run.carry_out(*combinable(run.store)),
    "close": lambda run: run.store.close(),
}
"""Calls after which everything is flushed."""


def changes(rng: random.Random, model: Model, number: int) -> Iterator[tuple[int, list[bytes]]]:
    """(1, [id]) for a write, (-1, ids) for a remove, one after the other: they depend on what the model holds by then."""
    for _ in range(number):
        present = model.present
        kind = rng.random()
        if present and kind < 0.25:
            yield -1, rng.sample(present, min(len(present), rng.randint(1, 3)))
        elif present and kind < 0.45:
            yield 1, [rng.choice(present)]
        elif kind < 0.5 and model.now:
            yield 1, [rng.choice(list(model.now))]  # perhaps one that was removed: it comes back
        else:
            yield 1, [rng.randbytes(16)]


WORKLOAD = """
    open change:20 flush change:5 flush change:5 flush change:50 flush change:8 flush change:25 flush thin flush change:4
    compact change:4 close
    open change:25 roll {migrate} thin compact change:6 close
    open_erasing change:4 flush roll combine drop close
"""
MIGRATE = "thin flush change:6 flush migrate change:30 flush thin flush change:10 flush compact"


def workload(cell: Cell, path: Path, durability: str) -> tuple[Run, str]:
    """Return a run that has not begun, and its steps: changes of every kind, rolls, large messages, compaction, migration, a
    clean stop in the middle, combination, retention, erasure, and a clean stop at the end.

    For v1 the directory is what a broker left, with the broker's counts. It is adopted already, with bodies as they
    are stored.
    """
    run = Run(path, {**keys_of(cell), "durability": durability}, random.Random(3))
    run.path.mkdir()
    if cell.format == "v1":
        run.model = broker_segments(path)
        write_settings(UnsyncedFiles(), path, Settings(index=cell.index))
    return run, WORKLOAD.format(migrate=MIGRATE if cell.format == "v1" else "")


REAL_BYTES = 9000
"""Of each real segment its first records, up to about so many bytes: thousands of copies of it are made."""


def broker_segments(path: Path) -> Model:
    """The beginnings of segments that RabbitMQ wrote and compacted, cut between two records."""
    real = RealDirectory.load("v1_compacted")
    bodies = {}
    for segment in real.manifest["segments"][:2]:
        data = (DATA / "msg-store" / real.name / "store" / segment["name"]).read_bytes()
        ends = [(r["id"], r["offset"], r["offset"] + r["total_size"]) for r in segment["records"]]
        whole = [record for record in ends if record[2] <= REAL_BYTES]
        (path / segment["name"]).write_bytes(data[: whole[-1][2]])
        bodies |= {bytes.fromhex(msg_id): data[at + 24 : end - 1] for msg_id, at, end in whole}
    kept = {msg_id: frozenset({real.refcounts.get(msg_id, 0)}) for msg_id in bodies}
    return Model(kept, kept, kept, forgotten=True, given=bodies)
