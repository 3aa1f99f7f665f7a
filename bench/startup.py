"""Startup time of a program before its first message: a new interpreter starts, imports msgstore, and ends."""

from __future__ import annotations

import random
import subprocess
import sys
import time

from figures import Bound, Figures, Progress
from measure import SEED, Plan
from profiling import TOP, Line

NAME = "startup"
TITLE = "New interpreter, from start to end"
BARE = "bare interpreter"
CODE = {
    BARE: "pass",
    "msgstore": "import msgstore",
    "msgstore, first use": "import msgstore; msgstore.open_store",
    "msgstore, catalogue": "import msgstore; msgstore.load_catalogue()",
}
WALL = "wall time"
MOST = 60
"""Required maximum in milliseconds above the bare interpreter."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    if not plan.has("msgstore"):
        return
    order = random.Random(SEED)
    rounds = 4 * plan.rounds  # a round is short
    _milliseconds(CODE["msgstore, catalogue"])  # the first import may have to compile modules
    for number in range(rounds):
        progress(f"startup, round {number + 1} of {rounds}")
        for name in order.sample(list(CODE), len(CODE)):
            figures.add(NAME, name, WALL, 0, "ms", _milliseconds(CODE[name]))


def bounds(figures: Figures) -> list[Bound]:
    ours, bare = figures.get(NAME, "msgstore", WALL, 0), figures.get(NAME, BARE, WALL, 0)
    if not (ours and bare):
        return []
    more = ours.value - bare.value
    return [Bound("msgstore", NAME, "import msgstore, above bare interpreter", 0, "ms", "at most", MOST, more)]


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Return the imported modules by import time."""
    command = [sys.executable, "-X", "importtime", "-c", CODE[bound.store]]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()[1:]
    rows = [line.removeprefix("import time:").split("|") for line in found]
    slowest = sorted(((int(own) / 1e3, name.strip()) for own, _, name in rows), reverse=True)[:TOP]
    return "modules by import time, without the modules that they import", [Line(name, own, "ms") for own, name in slowest]


def _milliseconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - start) * 1e3
