"""Swapping: the index is told where records have moved to, and is asked whether it knows.

What stands at the old places is cut or deleted afterwards. So nothing is taken on trust: where the index does not say what it
should, it gets the old places back, and the collection ends with the segment as readable as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import eq

from msgstore.contract import Index, StoreError
from msgstore.engine.compact.gc_context import GcContext
from msgstore.engine.compact.pinning import InconsistentSegment, PinnedSegment
from msgstore.engine.segment.segment import Segment
from msgstore.scan.formats import failure_message


def swap(context: GcContext, segment: Segment, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> None:
    """Have the index point to ``new`` for records of ``segment`` that are alive at ``old``. Caller holds the state lock.

    Raises InconsistentSegment if it does not; then it points to ``old``. StoreError if not even that is so.
    """
    shared = context.accounting.shared.ids.intersection(ids) if context.accounting.shared.ids else ()
    references = {msg_id: context.index.references(msg_id) for msg_id in shared}
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
    """The rows whose records have not died since the mark. Caller holds the state lock."""
    if not (died := source.died):
        return ids, old, new
    alive = [location not in died for location in old]
    return list(compress(ids, alive)), list(compress(old, alive)), list(compress(new, alive))


def _restore(index: Index, segment: Segment, ids: Sequence[bytes], old: Sequence[int], references: Mapping[bytes, int]) -> None:
    """``references``: of the ids that had more than one."""
    astray = [at for at, msg_id in enumerate(ids) if index.get(msg_id) != old[at]]
    named = [ids[at] for at in astray]
    index.enter(named, [old[at] for at in astray], [references.get(msg_id, 1) for msg_id in named])
    lost = sum(index.get(ids[at]) != old[at] for at in astray)
    if lost:
        raise StoreError(
            f"{segment.path}: the index is damaged: {lost} live records are not where it said. Close the store, move the "
            f"index's files (msgstore-*) away, and open it again: it is rebuilt from the segments."
        )
