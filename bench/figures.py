"""Figures of the operations with their own tables, and the requirements on them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from measure import Plan
from profiling import Line

Limit = Literal["at least", "at most"]
Progress = Callable[[str], object]


@dataclass
class Figure:
    """Number of one store, with one value per round."""

    operation: str
    store: str
    name: str
    """Column in the table of the operation."""
    size: int
    """Size of a body in bytes, or of a file for operations on files."""
    unit: str
    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    def over(self, other: Figure) -> float:
        """Return the median of the quotients of each round, because the load of the machine in a round affects both figures.

        A quotient is infinite if ``other`` is 0: processor time is counted in hundredths of a second, so a small input may
        have none.
        """
        rounds = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(above / below if below else math.inf for above, below in rounds)


class Figures:
    """Figures by (operation, store, name, size), in the order of first appearance."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str, str, int], Figure] = {}

    def add(self, operation: str, store: str, name: str, size: int, unit: str, value: float) -> None:
        key = operation, store, name, size
        self._by_key.setdefault(key, Figure(*key, unit)).rounds.append(value)

    def get(self, operation: str, store: str, name: str, size: int) -> Figure | None:
        return self._by_key.get((operation, store, name, size))

    def of(self, operation: str) -> list[Figure]:
        return [figure for figure in self if figure.operation == operation]

    def sizes(self, operation: str) -> list[int]:
        return sorted({figure.size for figure in self.of(operation)})

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._by_key.values())


@dataclass(frozen=True)
class Bound:
    """Requirement on a figure, or on the quotient of two figures."""

    store: str
    operation: str
    what: str
    size: int
    unit: str
    """Empty for a quotient."""
    limit: Limit
    required: float
    measured: float

    @property
    def met(self) -> bool:
        return self.measured >= self.required if self.limit == "at least" else self.measured <= self.required


class Measurement(Protocol):
    """Module that measures one operation with its own table. A module without bounds needs no ``profile``."""

    NAME: str
    """Name of the operation."""
    TITLE: str
    """Title of the table."""

    def run(self, plan: Plan, figures: Figures, progress: Progress) -> None:
        """Run all rounds that ``plan`` demands, and add their figures."""

    def bounds(self, figures: Figures) -> list[Bound]:
        """Return the requirements on the measured figures."""

    def profile(self, plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
        """Repeat the operation of a bound under a profiler. Return a description of the run, and the lines of the profile."""
