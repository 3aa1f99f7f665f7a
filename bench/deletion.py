"""Deletion of segments in which nothing lives any more, beside bare unlinks of copies of the same files.

In each round both sets of files are made and synced, then deleted slice by slice, the slice of one set after that of the other,
now the one first, now the other: what the machine does meanwhile hits both. For msgstore the clock runs while the call that
deletes the files runs: the removals themselves are over.
"""

from __future__ import annotations

import contextlib
import cProfile
import gc
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from figures import Bound, Figures, Progress
from measure import SEED, Plan, fresh_directory, make_messages
from ours import open_msgstore
from profiling import Line, TimedFiles, functions

NAME = "deletion"
TITLE = "Deletion of empty segments of 64 KiB: milliseconds for all, microseconds a file"
SEGMENTS = 1000
SEGMENT = 64 * 1024
BODY = 8 * 1024
"""Eight messages or nine fill a segment, so that a slice is removed without a flush of its own (after 10,000 removals)."""
SLICES = 4
"""A slice of 250 files: few enough to alternate, enough for what a call costs by itself not to count."""
BARE = "bare unlinks"
ALL, EACH = "all", "a file"
MOST = 1.2
"""Times the bare unlinks' time."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    if not plan.has("msgstore"):
        return
    count = plan.count(SEGMENTS)
    rounds = 2 * plan.rounds  # they are short
    for number in range(rounds):
        progress(f"deletion of {count} segments, round {number + 1} of {rounds}")
        with fresh_directory(plan.directory) as directory:
            times = _round(directory, count, number)
        for name, seconds in times.items():
            figures.add(NAME, name, ALL, SEGMENT, "ms", seconds * 1e3)
            figures.add(NAME, name, EACH, SEGMENT, "us", seconds * 1e6 / count)


def bounds(figures: Figures) -> list[Bound]:
    ours, bare = figures.get(NAME, "msgstore", ALL, SEGMENT), figures.get(NAME, BARE, ALL, SEGMENT)
    if not (ours and bare):
        return []
    return [Bound("msgstore", NAME, "time / bare unlinks'", SEGMENT, "", "at most", MOST, ours.over(bare))]


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Of one round: time inside unlink and outside of it, and the functions of the calls that delete."""
    count, files = plan.count(SEGMENTS), TimedFiles()
    profiler = cProfile.Profile()
    with fresh_directory(plan.directory) as directory:
        times = _round(directory, count, 0, files)
    with fresh_directory(plan.directory) as directory:
        _round(directory, count, 0, profiler=profiler)
    inside = files.seconds("unlink")
    lines = [
        Line("a file, all of it", times["msgstore"] * 1e6 / count, "us"),
        Line("of that, inside unlink", inside * 1e6 / count, "us"),
        Line("other file operations", (files.seconds() - inside) * 1e6 / count, "us"),
        Line("a bare unlink", times[BARE] * 1e6 / count, "us"),
        Line("unlinks a file", files.count("unlink") / count, ""),
        *functions(profiler, count, "us"),
    ]
    return f"{count:,} segments; file operations timed, then functions by own time under cProfile", lines


def _round(
    directory: Path, count: int, number: int, files: TimedFiles | None = None, profiler: cProfile.Profile | None = None
) -> dict[str, float]:
    """Seconds by row. In SLICES, in each of which both delete as many; who begins changes from slice to slice."""
    store = open_msgstore(
        directory / "store",
        files,
        index="ets",
        format="v2",
        durability="os",
        file_size_limit=SEGMENT,
        sync_interval="1h",
        gc_interval=0,
    )
    try:
        client = store.client()
        rng = random.Random(SEED + number)
        while len(store.segments()) <= count:
            for msg_id, body in make_messages(BODY, 64, rng):
                client.write(msg_id, body)
            store.flush()
        store.roll()
        ids: dict[int, list[bytes]] = {}
        for entry in store.entries():
            ids.setdefault(entry.number, []).append(entry.msg_id)
        names = {segment.number: segment.file for segment in store.segments()}
        copies = directory / "copies"
        copies.mkdir()
        for name in names.values():
            shutil.copyfile(store.path / name, copies / name)
        os.sync()  # or the one set has been written to the disk by now, and the other has not

        def there(chosen: Sequence[int]) -> list[str]:
            return [names[at] for at in chosen if (store.path / names[at]).exists()]

        times = {"msgstore": 0.0, BARE: 0.0}
        if files is not None:
            files.events.clear()
        numbers = sorted(names)
        for part in range(SLICES):
            chosen = numbers[part::SLICES]
            bare = [str(copies / names[at]) for at in chosen]
            before = len(files.events) if files is not None else 0
            for at in chosen:
                client.remove(ids[at])
            if len(there(chosen)) < len(chosen):
                raise RuntimeError("segments were deleted before the clock ran")
            if files is not None:
                del files.events[before:]
            order = ["msgstore", BARE] if (number + part) % 4 in (0, 3) else [BARE, "msgstore"]
            for name in order:
                if name == BARE:
                    times[name] += _timed(partial(_unlink, bare))
                    continue
                times[name] += _timed(store.flush, profiler)
                if there(chosen):  # what the flush has left to the collector
                    times[name] += _timed(store.compact, profiler)
            if left := there(chosen):
                raise RuntimeError(f"{len(left)} empty segments were not deleted, {left[0]} for one")
    finally:
        store.close()
    return {name: seconds * count / len(names) for name, seconds in times.items()}


def _timed(action: Callable[[], object], profiler: cProfile.Profile | None = None) -> float:
    gc.collect()
    with profiler or contextlib.nullcontext():
        start = time.perf_counter()
        action()
        return time.perf_counter() - start


def _unlink(paths: Sequence[str]) -> None:
    for path in paths:
        os.unlink(path)  # noqa: PTH108 - the floor is the bare call
