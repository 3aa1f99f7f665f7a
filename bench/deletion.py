"""Deletion of segments without live messages, compared with bare unlinks of copies of the same files.

In each round, both sets of files are created and synced, and then deleted in slices. Slices of the two sets alternate, and the
order changes, so that other load on the machine affects both. For msgstore, the clock runs only during the call that deletes
the files, after the removals.
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
from measure import SEED, Plan, make_messages, new_directory
from ours import open_msgstore
from profiling import Line, TimedFiles, functions

NAME = "deletion"
TITLE = "Deletion of empty segments of 64 KiB: milliseconds for all, microseconds per file"
SEGMENTS = 1000
SEGMENT = 64 * 1024
BODY = 8 * 1024
"""Eight or nine messages fill a segment. So the removals of a slice cause no flush, which happens after 10,000 removals."""
SLICES = 4
"""Slices of 250 files: small enough to alternate often, large enough that the cost of a call itself does not matter."""
BARE = "bare unlinks"
ALL, EACH = "all", "per file"
MOST = 1.2
"""Required maximum, relative to the time of the bare unlinks."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    if not plan.has("msgstore"):
        return
    count = plan.count(SEGMENTS)
    rounds = 2 * plan.rounds  # a round is short
    for number in range(rounds):
        progress(f"deletion of {count} segments, round {number + 1} of {rounds}")
        with new_directory(plan.directory) as directory:
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
    """Repeat one round: time inside and outside unlink, and functions of the calls that delete."""
    count, files = plan.count(SEGMENTS), TimedFiles()
    profiler = cProfile.Profile()
    with new_directory(plan.directory) as directory:
        times = _round(directory, count, 0, files)
    with new_directory(plan.directory) as directory:
        _round(directory, count, 0, profiler=profiler)
    inside = files.seconds("unlink")
    lines = [
        Line("total per file", times["msgstore"] * 1e6 / count, "us"),
        Line("of that, inside unlink", inside * 1e6 / count, "us"),
        Line("other file operations", (files.seconds() - inside) * 1e6 / count, "us"),
        Line("bare unlink", times[BARE] * 1e6 / count, "us"),
        Line("unlinks per file", files.count("unlink") / count, ""),
        *functions(profiler, count, "us"),
    ]
    return f"{count:,} segments; file operations timed, then functions by own time under cProfile", lines


def _round(
    directory: Path, count: int, number: int, files: TimedFiles | None = None, profiler: cProfile.Profile | None = None
) -> dict[str, float]:
    """Return the seconds of one round by row. In each slice both sets lose the same files; the order of the sets alternates."""
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
        os.sync()  # otherwise only one of the sets may be on disk by now

        def existing(chosen: Sequence[int]) -> list[str]:
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
            if len(existing(chosen)) < len(chosen):
                raise RuntimeError("segments were deleted before the clock started")
            if files is not None:
                del files.events[before:]
            order = ["msgstore", BARE] if (number + part) % 4 in (0, 3) else [BARE, "msgstore"]
            for name in order:
                if name == BARE:
                    times[name] += _timed(partial(_unlink, bare))
                    continue
                times[name] += _timed(store.flush, profiler)
                if existing(chosen):  # the flush may leave segments to the collector
                    times[name] += _timed(store.compact, profiler)
            if left := existing(chosen):
                raise RuntimeError(f"{len(left)} empty segments were not deleted, for example {left[0]}")
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
        os.unlink(path)  # noqa: PTH108 - the floor is the bare system call
