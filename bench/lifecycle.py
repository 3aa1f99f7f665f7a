"""How much of what lives shortly is written at all. How fast it goes is timed with the other rows."""

from __future__ import annotations

import random
import time
from pathlib import Path

import children
from amplification import COUNTED, CountedMsgStore
from figures import Bound, Figures, Progress
from measure import SEED, Plan, fresh_directory, make_messages
from peer import LAG
from profiling import Line, TimedFiles

NAME = "lifecycle"
TITLE = "Short lives (put, get, remove, lag 500): bytes written, of the bodies' bytes"
SECONDS = 1.0
"""A child goes on for as long, so that what a store does by the clock is in the figure."""
MOST = 0.01
"""Of the bodies' bytes, written by msgstore."""
WRITTEN = "written / bodies"


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    """Counts, not times: one round."""
    for size, messages in plan.messages.items():
        for name, (store, _) in COUNTED.items():
            if plan.has(store):
                progress(f"lifecycle, {size} B, bytes written: {name}")
                with fresh_directory(plan.directory) as directory:
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
    """Bytes by the kind of file, in one pass."""
    messages = max(plan.messages[bound.size] // 4, 2 * LAG)
    files = TimedFiles()
    with fresh_directory(plan.directory) as directory:
        peer = CountedMsgStore(directory, files)
        peer.lifecycles(make_messages(bound.size, messages, random.Random(SEED)))
        found = files.written_by_kind()
        peer.close()
    whole = bound.size * messages
    lines = [Line(kind, size / whole, "") for kind, size in found.items()]
    lines += [
        Line("bodies that live at a time, flushed at 1 MiB", LAG * bound.size / 2**20, "MiB"),
        Line("writes to files", files.count("pwrite") / messages, "a message"),
    ]
    return f"{messages:,} messages; bytes that pass Files, by bodies' bytes", lines


def count(name: str, directory: str, size: int, messages: int) -> float | None:
    """In a child: bytes written for each byte of body. Each pass has new ids; the store is not closed while it is counted."""
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
