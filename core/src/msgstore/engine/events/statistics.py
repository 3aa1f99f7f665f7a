"""Statistics for observers: the numbers of a store by name, without a reference to the store."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from msgstore.contract import StoreClosed


class HasStats(Protocol):
    """A store."""

    def stats(self) -> Any:
        """Return an attrs object with numbers, and ``counters`` among them. Raises StoreClosed."""


def statistics_of(store: HasStats) -> Callable[[], Mapping[str, int]]:
    """Return a function that gives ``store.stats()`` as numbers; nothing once the store is closed or gone."""
    reference = weakref.ref(store)

    def statistics() -> Mapping[str, int]:
        there = reference()
        try:
            stats = there.stats() if there is not None else None
        except StoreClosed:
            stats = None
        if stats is None:
            return {}
        own = attrs.asdict(stats, recurse=False)
        return {name: value for name, value in own.items() if isinstance(value, int)} | attrs.asdict(stats.counters)

    return statistics
