"""Filters that are decided before bodies are read: on ``store``, ``file``, ``id`` and ``type``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
from pyspark.sql.datasource import EqualTo, Filter, In

from msgstore.jobs.columns.batches import as_text
from msgstore.jobs.inputs import SegmentInput


@attrs.frozen
class Pushed:
    """Sets of the values that are wanted; None for all."""

    stores: frozenset[str] | None = None
    files: frozenset[str] | None = None
    ids: frozenset[bytes] | None = None
    types: frozenset[int] | None = None
    rest: tuple[Filter, ...] = ()
    """What Spark still has to look at."""

    def keeps(self, found: SegmentInput) -> bool:
        return self.keeps_file(found.store, Path(found.path).name)

    def keeps_file(self, store: str, file: str) -> bool:
        """By the names as the columns show them."""
        shown = as_text(store), as_text(file)
        return (self.stores is None or shown[0] in self.stores) and (self.files is None or shown[1] in self.files)


_COLUMNS = {"store": "stores", "file": "files", "id": "ids", "type": "types"}
_OF_SEGMENTS = ("store", "file")


def push(filters: Iterable[Filter], *, records: bool) -> Pushed:
    """All of ``filters`` hold. Ids and types are those of ``records``."""
    wanted: dict[str, frozenset[object]] = {}
    rest: list[Filter] = []
    for given in filters:
        if isinstance(given, EqualTo):
            path, values = given.attribute, frozenset([given.value])
        elif isinstance(given, In):
            path, values = given.attribute, frozenset(given.value)
        else:
            rest.append(given)
            continue
        column = path[0] if len(path) == 1 else ""
        if column not in (_COLUMNS if records else _OF_SEGMENTS):
            rest.append(given)
            continue
        name = _COLUMNS[column]
        values -= {None}  # equal to nothing
        wanted[name] = wanted[name] & values if name in wanted else values
    return Pushed(**wanted, rest=tuple(rest))  # type: ignore[arg-type]  # each under its own name
