"""Deletion of segments in which nothing lives any more, beside bare unlinks of copies of the same files.

In each round both sets of files are made and synced, then deleted one set after the other, in random order. For msgstore the
clock runs while the call that deletes the files runs: the removals themselves are over.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import time
from pathlib import Path

from figures import Bound, Figures, Progress
from measure import SEED, Plan, fresh_directory, make_messages

import msgstore

NAME = "deletion"
TITLE = "Deletion of empty segments of 64 KiB: milliseconds for all, microseconds a file"
SEGMENTS = 1000
SEGMENT = 64 * 1024
BODY = 8 * 1024
"""Eight messages or nine fill a segment, so that one call removes all without a flush of its own (after 10,000 removals)."""
BARE = "bare unlinks"
ALL, EACH = "all", "a file"
MOST = 1.2
"""Times the bare unlinks' time."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    if not plan.has("msgstore"):
        return
    order = random.Random(SEED)
    count = plan.count(SEGMENTS)
    rounds = 2 * plan.rounds  # they are short
    for number in range(rounds):
        progress(f"deletion of {count} segments, round {number + 1} of {rounds}")
        with fresh_directory(plan.directory) as directory:
            times = _round(directory, count, order)
        for name, seconds in times.items():
            figures.add(NAME, name, ALL, SEGMENT, "ms", seconds * 1e3)
            figures.add(NAME, name, EACH, SEGMENT, "us", seconds * 1e6 / count)


def bounds(figures: Figures) -> list[Bound]:
    ours, bare = figures.get(NAME, "msgstore", ALL, SEGMENT), figures.get(NAME, BARE, ALL, SEGMENT)
    if not (ours and bare):
        return []
    return [Bound("msgstore", NAME, "time / bare unlinks'", SEGMENT, "", "at most", MOST, ours.over(bare))]


def _round(directory: Path, count: int, order: random.Random) -> dict[str, float]:
    """Seconds by row."""
    store = msgstore.open_store(
        directory / "store", index="ets", format="v2", durability="os", file_size_limit=SEGMENT, sync_interval="1h"
    )
    try:
        client = store.client()
        ids = []
        while len(store.segments()) <= count:
            for msg_id, body in make_messages(BODY, 64, order):
                client.write(msg_id, body)
                ids.append(msg_id)
            store.flush()
        store.roll()
        paths = [store.path / segment.file for segment in store.segments()]
        copies = directory / "copies"
        copies.mkdir()
        bare = [str(shutil.copyfile(path, copies / path.name)) for path in paths]
        os.sync()  # or the one set has been written to the disk by now, and the other has not
        client.remove(ids)
        if not all(path.exists() for path in paths):
            raise RuntimeError("segments were deleted before the clock ran")

        def delete() -> None:
            store.flush()
            if store.segments():  # those that the flush left to the collector
                store.compact()

        def unlink() -> None:
            for path in bare:
                os.unlink(path)  # noqa: PTH108 - the floor is the bare call

        times = {}
        for name, action in order.sample([("msgstore", delete), (BARE, unlink)], 2):
            gc.collect()
            start = time.perf_counter()
            action()
            times[name] = (time.perf_counter() - start) * count / len(paths)
        if left := [path.name for path in paths if path.exists()]:
            raise RuntimeError(f"{len(left)} empty segments were not deleted, {left[0]} for one")
    finally:
        store.close()
    return times
