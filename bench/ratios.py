"""What the project asks of itself, as ratios of speeds within one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from measure import Results

Clock = Literal["wall", "cpu"]

PUTS: dict[int, tuple[float, Clock]] = {64: (0.8, "wall"), 1024: (2, "cpu"), 16384: (3, "cpu")}
"""Body size to (least ratio of msgstore's puts to RocksDB's, by which clock). Above small bodies wall time measures the
host's memory as much as the program."""
GETS = 0.6
"""Least ratio of msgstore's random gets, with ``reads = "mmap"``, to the pread floor's; wall time, 10,000 messages, each size.
With ``pread``, the default, the system call leaves too little for Python (docs/adr/0004-pread-or-mmap.md): for information."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as another store msgstore is."""

    store: str
    """``msgstore``, or the row of it that has other options."""
    operation: str
    size: int
    working_set: str
    other: str
    clock: Clock
    required: float | None
    """None: for information."""
    measured: float

    @property
    def met(self) -> bool | None:
        return None if self.required is None else self.measured >= self.required


def ratios(results: Results) -> list[Ratio]:
    """The required ones first, then those for information; only what was measured."""
    sizes = sorted({result.size for result in results})
    asked: list[tuple[str, str, int, str, str, Clock, float | None]] = []
    asked += [("msgstore", "put", size, "full", "RocksDB", PUTS[size][1], PUTS[size][0]) for size in sizes if size in PUTS]
    asked += [("msgstore mmap", "get", size, "10k", "floor", "wall", GETS) for size in sizes]
    asked += [("msgstore", "get", size, "10k", "floor", "wall", None) for size in sizes]
    asked += [(store, "get", size, "full", "floor", "wall", None) for store in ("msgstore mmap", "msgstore") for size in sizes]
    asked += [("msgstore", "get", size, kind, "look-up + pread", "wall", None) for kind in ("10k", "full") for size in sizes]
    found = []
    for store, operation, size, working_set, other, clock, required in asked:
        ours = results.get(store, operation, size, working_set)
        theirs = results.get(other, operation, size, working_set)
        if ours and theirs:
            measured = theirs.wall_ns / ours.wall_ns if clock == "wall" else theirs.cpu_ns / ours.cpu_ns
            found.append(Ratio(store, operation, size, working_set, other, clock, required, measured))
    return found
