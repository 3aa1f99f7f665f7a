"""Requirements on ratios of speeds within one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from measure import Result, Results
from peers import RIVALS

Clock = Literal["wall", "cpu"]

PUTS: dict[int, tuple[float, Clock]] = {64: (1, "wall"), 1024: (2.5, "cpu"), 16384: (5, "cpu")}
"""Body size to (minimum ratio of msgstore's puts to RocksDB's, clock). For larger bodies, wall time measures the memory of the
host as much as the program."""
LIFECYCLES = {"RocksDB": 5.0, "best peer": 1.5}
"""Minimum ratio of msgstore's lifecycles to those of RocksDB, and of the fastest peer. Clocks as for puts."""
GETS = 0.6
"""Minimum ratio of msgstore's random gets with ``reads = "mmap"`` to those of the floor, for 10,000 messages of each size, wall
time. There is no requirement for the default, ``pread``: the system call takes most of the time
(docs/adr/0004-pread-or-mmap.md)."""


@dataclass(frozen=True)
class Ratio:
    """Speed of msgstore, relative to another store."""

    store: str
    """``msgstore``, or its row with other options."""
    operation: str
    size: int
    working_set: str
    other: str
    """A store, or ``best peer``: the fastest store by the same clock."""
    clock: Clock
    required: float | None
    """Required minimum. None for information."""
    measured: float

    @property
    def met(self) -> bool | None:
        return None if self.required is None else self.measured >= self.required


def ratios(results: Results) -> list[Ratio]:
    """Return the ratios with requirements, then those for information, of all measured stores."""
    sizes = sorted({result.size for result in results})
    asked: list[tuple[str, str, int, str, str, Clock, float | None]] = []
    asked += [("msgstore", "put", size, "full", "RocksDB", PUTS[size][1], PUTS[size][0]) for size in sizes if size in PUTS]
    for other, least in LIFECYCLES.items():
        asked += [("msgstore", "lifecycle", size, "full", other, _clock(size), least) for size in sizes]
    asked += [("msgstore mmap", "get", size, "10k", "floor", "wall", GETS) for size in sizes]
    asked += [("msgstore", "get", size, "10k", "floor", "wall", None) for size in sizes]
    asked += [
        ("msgstore", operation, size, "full", "RocksDB", _other_clock(size), None)
        for operation in ("put", "lifecycle")
        for size in sizes
    ]
    asked += [("msgstore", "lifecycle", size, "full", "best peer", _other_clock(size), None) for size in sizes]
    asked += [(store, "get", size, "full", "floor", "wall", None) for store in ("msgstore mmap", "msgstore") for size in sizes]
    asked += [("msgstore", "get", size, kind, "look-up + pread", "wall", None) for kind in ("10k", "full") for size in sizes]
    found = []
    for store, operation, size, working_set, other, clock, required in asked:
        ours = results.get(store, operation, size, working_set)
        names = RIVALS if other == "best peer" else (other,)
        theirs = [result for name in names if (result := results.get(name, operation, size, working_set))]
        if ours and theirs:
            measured = min(_cost(result, clock) for result in theirs) / _cost(ours, clock)
            found.append(Ratio(store, operation, size, working_set, other, clock, required, measured))
    return found


def _clock(size: int) -> Clock:
    return PUTS[size][1] if size in PUTS else "wall"


def _other_clock(size: int) -> Clock:
    return "cpu" if _clock(size) == "wall" else "wall"


def _cost(result: Result, clock: Clock) -> float:
    return result.wall_ns if clock == "wall" else result.cpu_ns
