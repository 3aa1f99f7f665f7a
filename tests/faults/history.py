"""Stores to begin with: small, of several segments, made by a random history that a seed determines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgstore
from faults.model import Cell, Model, Run, body_of

INDEXES: dict[str, Any] = {"ets": "ets", "lmdb": {"use": "lmdb", "map_size": "1MiB"}}
"""Name to the key of a configuration. The map is small, so that copies of a directory are."""


def make_template(cell: Cell, directory: Path) -> Run:
    """One to three openings of a store, each with changes, flushes and collections; closed after the last one, or killed."""
    rng = cell.rng("history")
    run = Run(cell, directory / "made", _keys(cell, rng))
    openings, old_format, other_index = rng.randint(1, 3), rng.random() < 0.3, rng.random() < 0.25
    index = cell.index
    if other_index and cell.phase == "opening":  # which then takes the counts over
        index = "lmdb" if index == "ets" else "ets"
    for left in reversed(range(openings)):
        is_old = old_format and (left or openings == 1)
        old: dict[str, Any] = {"format": "v1", "record": "message"} if is_old else {}
        store = run.open(index=INDEXES[index], **old)
        _work(rng, store, run.model)
        killed = rng.random() < 0.3
        if killed and not left and rng.random() < 0.6:
            change(rng, store.client(), run.model, 8)
        if killed:
            store.abandon()
            run.model.killed()
        else:
            store.close()
            run.model.flushed()
        run.forgotten = killed and index == "ets"
    return run


def _keys(cell: Cell, rng: random.Random) -> dict[str, Any]:
    return {
        "index": INDEXES[cell.index],
        "format": "v2",
        "record": rng.choice(["message", "message", "checksum"]),
        "durability": cell.durability,
        "file_size_limit": rng.choice([4096, 8192, 16384]),
        "large_message": 6000,
        "gc_interval": 0,
        "sync_interval": rng.choice(["1h", "1h", 0]),  # 0: each call flushes. Nothing is done by a thread of the store's
        "erase": rng.random() < 0.2,
    }


def _work(rng: random.Random, store: msgstore.Store, model: Model) -> None:
    clients = [store.client(name) for name in ("first", "second", None)[: rng.randint(1, 3)]]
    for _ in range(rng.randint(1, 3)):
        change(rng, rng.choice(clients), model, rng.randint(10, 40))
        store.flush()
        model.flushed()
        if rng.random() < 0.3:
            rng.choice([store.roll, lambda: store.compact(everything=True), store.migrate])()


def change(rng: random.Random, client: msgstore.Client, model: Model, number: int) -> None:
    """So many calls of a client, none of which fails."""
    for by, ids in changes(rng, model, number):
        client.write(ids[0], body_of(ids[0])) if by > 0 else client.remove(ids)
        model.change(ids, by)


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
