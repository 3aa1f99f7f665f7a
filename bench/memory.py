"""Resident memory of an index, for each entry.

In a process of its own: the ids lie in one block of memory before the first measurement, so the block is in neither figure;
the id and location objects of the entries belong to the index and are counted. All bodies are one and the same object.
"""

from __future__ import annotations

import gc
import random
from pathlib import Path

import children
from figures import Bound, Figures, Progress
from measure import SEED, Plan, fresh_directory

import msgstore

NAME = "memory"
TITLE = "Resident bytes an entry of the index, and how many entries there were"
BARE = "bare dict"
ENTRIES = {"msgstore": 5_000_000, "msgstore, lmdb": 1_000_000, BARE: 5_000_000}
"""Row to entries; ``bare dict`` is one from id to an int, with nothing around it."""
INDEXES = {"msgstore": "ets", "msgstore, lmdb": "lmdb"}
BYTES, COUNT = "an entry", "entries"
BODY = 64
MOST = 160


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    """One round: memory does not vary as time does."""
    if not plan.has("msgstore"):
        return
    for name, usual in ENTRIES.items():
        count = plan.count(usual)
        progress(f"memory of {count:,} entries: {name}")
        with fresh_directory(plan.directory) as directory:
            grown = children.call(grow, name, str(directory), count)
        if grown is not None:
            figures.add(NAME, name, BYTES, BODY, "B", grown / count)
            figures.add(NAME, name, COUNT, BODY, "", count)


def bounds(figures: Figures) -> list[Bound]:
    figure = figures.get(NAME, "msgstore", BYTES, BODY)
    return [Bound("msgstore", NAME, "resident bytes an entry", BODY, "B", "at most", MOST, figure.value)] if figure else []


def grow(name: str, directory: str, count: int) -> int | None:
    """In a child: by how many bytes the process grew while ``count`` messages were written and flushed."""
    block = random.Random(SEED).randbytes(16 * count)
    if name == BARE:
        bare: dict[bytes, int] = {}
        before = _resident()
        for at in range(0, len(block), 16):
            bare[block[at : at + 16]] = 2**40 + at
        return _difference(before, _resident())
    store = msgstore.open_store(Path(directory), index=INDEXES[name], format="v2")
    client, body = store.client(), bytes(BODY)
    client.write(bytes(16), body)
    store.flush()
    before = _resident()
    write = client.write
    for at in range(0, len(block), 16):
        write(block[at : at + 16], body)
    store.flush()
    after = _resident()
    if (messages := store.stats().messages) != count + 1:
        raise RuntimeError(f"{messages} messages instead of {count + 1}")
    store.close()
    return _difference(before, after)


def _resident() -> int | None:
    gc.collect()
    return children.resident_bytes()


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
