"""A store's statistics for observers: numbers by name, without the store itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from msgstore.contract import StoreClosed

if TYPE_CHECKING:
    from msgstore.engine.store import Store


def statistics_of(store: Store) -> Callable[[], Mapping[str, int]]:
    """``store.stats()`` as numbers, those of its counters among them; empty once the store is closed or forgotten."""
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
