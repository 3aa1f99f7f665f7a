"""Bytes written by short-lived messages. Their speed is measured in the first table."""

from __future__ import annotations

import random
import time
from pathlib import Path

import children
from amplification import COUNTED, CountedMsgStore
from figures import Bound, Figures, Progress
from measure import SEED, Plan, make_messages, new_directory
from peer import LAG
from profiling import Line, TimedFiles

NAME = "lifecycle"
TITLE = "Short lives (put, get, remove, lag 500): bytes written per byte of bodies"
SECONDS = 1.0
"""Minimum duration of a child process, so that the figure includes the periodic work of a store."""
MOST = 0.01
"""Required maximum of bytes written by msgstore per byte of bodies."""
WRITTEN = "written / bodies"


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    """Count written bytes. One round is enough, because counts hardly vary."""
    for size, messages in plan.messages.items():
        for name, (store, _) in COUNTED.items():
            if plan.has(store):
                progress(f"lifecycle, {size} B, bytes written: {name}")
                with new_directory(plan.directory) as directory:
                    share = children.call(count, name, str(directory), size, max(messages // 4, 2 * LAG))
                if share is not None:
                    figures.add(NAME, name, WRITTEN, size, "", share)


def bounds(figures: Figures) -> list[Bound]:
    return [
        Bound("msgstore", NAME, "bytes written / bodies", size, "", "at most", MOST, figure.value)
        for size in figures.sizes(NAME)
        if (figure := figures.get(NAME, "msgstore", WRITTEN, size))
    ]


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Return written bytes by kind of file, for one pass."""
    messages = max(plan.messages[bound.size] // 4, 2 * LAG)
    files = TimedFiles()
    with new_directory(plan.directory) as directory:
        peer = CountedMsgStore(directory, files)
        peer.lifecycles(make_messages(bound.size, messages, random.Random(SEED)))
        found = files.written_by_kind()
        peer.close()
    whole = bound.size * messages
    lines = [Line(kind, size / whole, "") for kind, size in found.items()]
    lines += [
        Line("bodies that live at a time, flushed at 1 MiB", LAG * bound.size / 2**20, "MiB"),
        Line("writes to files", files.count("pwrite") / messages, "per message"),
    ]
    return f"{messages:,} messages; bytes written through Files, per byte of bodies", lines


def count(name: str, directory: str, size: int, messages: int) -> float | None:
    """Return bytes written per byte of bodies. Each pass has new ids; closing is not counted. Runs in a child process."""
    peer = COUNTED[name][1](Path(directory))
    rng = random.Random(SEED)
    bodies = 0
    before = children.bytes_written()
    end = time.monotonic() + SECONDS
    while not bodies or time.monotonic() < end:
        peer.lifecycles(make_messages(size, messages, rng))
        bodies += size * messages
    after = children.bytes_written()
    peer.close()
    return None if before is None or after is None else (after - before) / bodies
