"""Resident memory of an index per entry, measured in a separate process.

The ids are in one block of memory before the first measurement, so the block does not count. The id and location objects of
the entries belong to the index, so they count. All bodies are the same object.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import children
from figures import Bound, Figures, Progress
from measure import SEED, Plan, new_directory
from profiling import TOP, Line

import msgstore

T = TypeVar("T")
NAME = "memory"
TITLE = "Resident bytes per entry of the index, and number of entries"
BARE = "bare dict"
ENTRIES = {"msgstore": 5_000_000, "msgstore, lmdb": 1_000_000, BARE: 5_000_000}
"""Row to number of entries. ``bare dict`` is a dict from id to int."""
INDEXES = {"msgstore": "ets", "msgstore, lmdb": "lmdb"}
BYTES, COUNT = "per entry", "entries"
BODY = 64
MOST = 160
PROFILED = 200_000
"""Maximum number of entries in a profile, because tracing allocations is slow."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    """Measure once: memory varies less than time."""
    if not plan.has("msgstore"):
        return
    for name, usual in ENTRIES.items():
        count = plan.count(usual)
        progress(f"memory of {count:,} entries: {name}")
        with new_directory(plan.directory) as directory:
            grown = children.call(grow, name, str(directory), count)
        if grown is not None:
            figures.add(NAME, name, BYTES, BODY, "B", grown / count)
            figures.add(NAME, name, COUNT, BODY, "", count)


def bounds(figures: Figures) -> list[Bound]:
    figure = figures.get(NAME, "msgstore", BYTES, BODY)
    return [Bound("msgstore", NAME, "resident bytes per entry", BODY, "B", "at most", MOST, figure.value)] if figure else []


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Return the bytes per entry that are still allocated at the end, by the line that allocated them."""
    count = min(plan.count(ENTRIES[bound.store]), PROFILED)
    with new_directory(plan.directory) as directory:
        lines = children.call(trace, bound.store, str(directory), count)
    how = f"{count:,} entries, tracemalloc; by the line that allocates"
    return how, [Line(place, size / count, "B") for place, size in lines]


def trace(name: str, directory: str, count: int) -> list[tuple[str, int]]:
    """Return (line, bytes) of new allocations, the largest first. Runs in a child process."""
    tracemalloc.start()
    before, after = _fill(name, directory, count, tracemalloc.take_snapshot)
    rows = sorted(after.compare_to(before, "lineno"), key=lambda row: -row.size_diff)[:TOP]
    places = [(row.traceback[0], row.size_diff) for row in rows]
    return [(f"{'/'.join(Path(place.filename).parts[-2:])}:{place.lineno}", size) for place, size in places]


def grow(name: str, directory: str, count: int) -> int | None:
    """Return the growth of the process in bytes while ``count`` messages are written and flushed. Runs in a child process."""
    before, after = _fill(name, directory, count, _resident)
    return None if before is None or after is None else after - before


def _fill(name: str, directory: str, count: int, measure: Callable[[], T]) -> tuple[T, T]:
    """Return the results of ``measure`` before and after ``count`` messages were written and flushed."""
    block = random.Random(SEED).randbytes(16 * count)
    if name == BARE:
        bare: dict[bytes, int] = {}
        before = measure()
        for at in range(0, len(block), 16):
            bare[block[at : at + 16]] = 2**40 + at
        return before, measure()
    store = msgstore.open_store(Path(directory), index=INDEXES[name], format="v2")
    client, body = store.client(), bytes(BODY)
    client.write(bytes(16), body)
    store.flush()
    before = measure()
    write = client.write
    for at in range(0, len(block), 16):
        write(block[at : at + 16], body)
    store.flush()
    after = measure()
    if (messages := store.stats().messages) != count + 1:
        raise RuntimeError(f"{messages} messages instead of {count + 1}")
    store.close()
    return before, after


def _resident() -> int | None:
    gc.collect()
    return children.resident_bytes()
