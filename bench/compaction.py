"""Compaction of one full segment of 16 MiB from which 60 % of the messages, chosen at random, were removed.

Each compaction runs in a separate process, so that the bytes written according to the system can be compared with the engine's
own count. Nothing is collected before the clock runs, because ``gc_interval`` is 0.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import children
from figures import Bound, Figures, Progress
from measure import CHECKED, SEED, Plan, make_messages, new_directory
from ours import open_msgstore
from peer import Pair
from profiling import TimedFiles

NAME = "compaction"
TITLE = "Compaction of a segment of 16 MiB, 60 % removed at random: milliseconds, KiB"
SEGMENT = 16 * 2**20
REMOVED = 0.6


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    if not plan.has("msgstore"):
        return
    for size in plan.messages:
        for number in range(plan.rounds):
            progress(f"compaction, {size} B, round {number + 1} of {plan.rounds}")
            with new_directory(plan.directory) as directory:
                for (name, unit), value in zip(COLUMNS, children.call(compact, str(directory), size, plan.most), strict=True):
                    if value is not None:
                        figures.add(NAME, "msgstore", name, size, unit, value)


COLUMNS = [
    ("compaction", "ms"), ("of that, fsync", "ms"), ("segment", "KiB"), ("moved", "KiB"), ("written", "KiB"),
    ("written, by /proc", "KiB"),
]  # fmt: skip


def bounds(figures: Figures) -> list[Bound]:
    """Return no requirements."""
    return []


def compact(path: str, size: int, most: int | None) -> list[float | None]:
    """Return one value for each of COLUMNS. ``most`` limits the messages, and so the segment. Runs in a child process."""
    files = TimedFiles()
    keys: dict[str, Any] = {"file_size_limit": SEGMENT, "sync_interval": "1h", "gc_interval": 0}
    with open_msgstore(Path(path), files, **keys) as store, store.client() as client:
        pairs: list[Pair] = []
        rng = random.Random(SEED)
        while len(pairs) != most and (not pairs or store.segments()[0].size < SEGMENT):
            more = make_messages(size, min(max(2**20 // size, 1), (most or SEGMENT) - len(pairs)), rng)
            client.write_many(more)
            store.flush()
            pairs += more
        store.roll()
        gone = set(rng.sample(range(len(pairs)), int(len(pairs) * REMOVED)))
        client.remove([pairs[at][0] for at in gone])
        store.flush()
        first = store.segments()[0]

        files.events.clear()
        before, start = children.bytes_written(), time.perf_counter()
        done = store.compact(everything=True)
        took, after = time.perf_counter() - start, children.bytes_written()

        one = next(each for each in done if each.file == first.file)
        if one.skipped or one.size_after >= one.size_before:
            raise RuntimeError(f"{first.file} was not compacted: {one}")
        left = [pair for at, pair in enumerate(pairs) if at not in gone]
        if any(client.read(msg_id) != body for msg_id, body in rng.sample(left, min(CHECKED, len(left)))):
            raise RuntimeError("read returned another body than the one that was put")
        written = None if before is None or after is None else (after - before) / 1024
        moved = sum(each.moved_bytes for each in done) / 1024, sum(each.written for each in done) / 1024
        return [took * 1000, files.seconds("sync") * 1000, first.size / 1024, *moved, written]
