"""Filters on ``store``, ``file``, ``id`` and ``type``, which are applied before bodies are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
from pyspark.sql.datasource import EqualTo, Filter, In

from msgstore.jobs.columns.batches import as_text
from msgstore.jobs.inputs import SegmentInput


@attrs.frozen
class PushedFilters:
    """Sets of accepted values; None accepts all."""

    stores: frozenset[str] | None = None
    files: frozenset[str] | None = None
    ids: frozenset[bytes] | None = None
    types: frozenset[int] | None = None
    remaining: tuple[Filter, ...] = ()
    """Filters that Spark must evaluate."""

    def accepts(self, found: SegmentInput) -> bool:
        """Return True if rows of this segment may be needed."""
        return self.accepts_file(found.store, Path(found.path).name)

    def accepts_file(self, store: str, file: str) -> bool:
        """Return True if rows of this file may be needed. Compares names as the columns show them."""
        shown = as_text(store), as_text(file)
        return (self.stores is None or shown[0] in self.stores) and (self.files is None or shown[1] in self.files)


_COLUMNS = {"store": "stores", "file": "files", "id": "ids", "type": "types"}
_SEGMENT_COLUMNS = ("store", "file")


def push(filters: Iterable[Filter], *, records: bool) -> PushedFilters:
    """Convert ``filters``, all of which must hold. Without ``records``, the relation has no columns ``id`` and ``type``."""
    wanted: dict[str, frozenset[object]] = {}
    remaining: list[Filter] = []
    for given in filters:
        if isinstance(given, EqualTo):
            path, values = given.attribute, frozenset([given.value])
        elif isinstance(given, In):
            path, values = given.attribute, frozenset(given.value)
        else:
            remaining.append(given)
            continue
        column = path[0] if len(path) == 1 else ""
        if column not in (_COLUMNS if records else _SEGMENT_COLUMNS):
            remaining.append(given)
            continue
        name = _COLUMNS[column]
        values -= {None}  # NULL equals nothing
        wanted[name] = wanted[name] & values if name in wanted else values
    return PushedFilters(**wanted, remaining=tuple(remaining))  # type: ignore[arg-type]  # the keys are attribute names
