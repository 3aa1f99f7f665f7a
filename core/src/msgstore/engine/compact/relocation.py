"""Relocation: point index entries to the new locations of moved records, and check that they do.

The bytes at the old locations are truncated or deleted afterwards. So the index is not trusted: if an entry is wrong, all
entries get their old locations back, and the collection ends with the segment unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import eq

from msgstore.contract import Index, StoreError
from msgstore.engine.compact.gc_context import GcContext
from msgstore.engine.compact.pinning import InconsistentSegment, PinnedSegment
from msgstore.engine.segment.segment import Segment
from msgstore.scan.formats import failure_message


def swap(context: GcContext, segment: Segment, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> None:
    """Point the entries of live records from ``old`` to ``new``. Caller holds the state lock.

    Raises InconsistentSegment if the index fails: its entries then point to ``old``. StoreError if even that fails.
    """
    references = list(map(context.index.references, ids))  # an index that fails may forget them
    try:
        moved = context.index.relocate(ids, old, new)
        if type(moved) is not int:
            raise TypeError(f"it gives {moved!r}, not the number of entries")
        if moved != len(ids):
            raise ValueError(f"{moved} of {len(ids)} live records are said to have moved")
        there = sum(map(eq, map(context.index.get, ids), new))
        if there != len(ids):
            raise ValueError(f"{len(ids) - there} of {len(ids)} live records are not where they were moved to")
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        _restore(context.index, segment, ids, old, references)
        reason = failure_message("index", context.index_name, context.index_provider, "relocate", error)
        raise InconsistentSegment(segment, reason, damaged=False) from error


def still_alive(
    source: PinnedSegment, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]
) -> tuple[Sequence[bytes], Sequence[int], Sequence[int]]:
    """Return the rows whose records have not died since the segment was pinned. Caller holds the state lock."""
    if not (died := source.died):
        return ids, old, new
    alive = [location not in died for location in old]
    return list(compress(ids, alive)), list(compress(old, alive)), list(compress(new, alive))


def _restore(index: Index, segment: Segment, ids: Sequence[bytes], old: Sequence[int], references: Sequence[int]) -> None:
    """Enter the ids again that the index does not have at ``old``, with the number of references that they had."""
    astray = [at for at, msg_id in enumerate(ids) if index.get(msg_id) != old[at]]
    index.enter([ids[at] for at in astray], [old[at] for at in astray], [references[at] for at in astray])
    lost = sum(index.get(ids[at]) != old[at] for at in astray)
    if lost:
        raise StoreError(
            f"{segment.path}: the index is damaged: {lost} live records are not where it said. Close the store, move the "
            f"index's files (msgstore-*) away, and open it again: it is rebuilt from the segments."
        )
