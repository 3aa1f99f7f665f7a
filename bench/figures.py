"""Figures that are not nanoseconds a message of a whole set, and what the project asks of them."""

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
    """One number of one store; one value a round."""

    operation: str
    store: str
    name: str
    """The column of the operation's table."""
    size: int
    """Bytes of a body, or of a file where files are what is handled."""
    unit: str
    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    def over(self, other: Figure) -> float:
        """Median of the quotients, round by round, because the state of the machine in a round changes both figures.

        Infinite where ``other`` is 0: processor time is counted in hundredths of a second, and a small input takes none.
        """
        rounds = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(above / below if below else math.inf for above, below in rounds)


class Figures:
    """By (operation, store, name, size), in the order of first appearance."""

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
    """One requirement on a figure, or on the quotient of two."""

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
    """A module that measures one operation and has a table of its own. One without bounds needs no ``profile``."""

    NAME: str
    """The operation."""
    TITLE: str

    def run(self, plan: Plan, figures: Figures, progress: Progress) -> None:
        """Everything that ``plan`` asks for, all rounds."""

    def bounds(self, figures: Figures) -> list[Bound]:
        """The requirements on what was measured."""

    def profile(self, plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
        """The operation of a bound once more, under a profiler: what was run and how, and what took how much."""
