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
"""Least ratio of msgstore's random gets to the pread floor's, wall time, 10,000 messages, at each size."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as another store msgstore is."""

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
    asked: list[tuple[str, int, str, str, Clock, float | None]] = []
    asked += [("put", size, "full", "RocksDB", PUTS[size][1], PUTS[size][0]) for size in sizes if size in PUTS]
    asked += [("get", size, "10k", "floor", "wall", GETS) for size in sizes]
    asked += [("get", size, "full", "floor", "wall", None) for size in sizes]
    asked += [("get", size, kind, "look-up + pread", "wall", None) for kind in ("10k", "full") for size in sizes]
    found = []
    for operation, size, working_set, other, clock, required in asked:
        ours = results.get("msgstore", operation, size, working_set)
        theirs = results.get(other, operation, size, working_set)
        if ours and theirs:
            measured = theirs.wall_ns / ours.wall_ns if clock == "wall" else theirs.cpu_ns / ours.cpu_ns
            found.append(Ratio(operation, size, working_set, other, clock, required, measured))
    return found
