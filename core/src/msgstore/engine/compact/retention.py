"""Retention: drop a segment with live messages, because the GC policy says so.

The messages are released, the index is committed, and the file is deleted afterwards, like that of any empty segment.
"""

from __future__ import annotations

import logging

from msgstore.engine.compact.collection_result import CollectionResult
from msgstore.engine.compact.compaction_plan import Live
from msgstore.engine.compact.gc_context import GcContext
from msgstore.engine.compact.in_place import SWAPPED_AT_ONCE
from msgstore.engine.compact.pinning import PinnedSegment

log = logging.getLogger("msgstore.collection")


def drop(context: GcContext, source: PinnedSegment, reason: str) -> CollectionResult:
    """Release all references of every message in a pinned segment. Caller holds no lock.

    Raises InconsistentSegment, StoreIOError.
    """
    segment = source.segment
    with context.segments.errors(segment), context.segments.files.view(segment.path) as data:
        live = source.live(context, data)
    released = 0
    for begin in range(0, len(live), SWAPPED_AT_ONCE):
        with context.state_lock:
            released += _release(context, source, live.part(begin, begin + SWAPPED_AT_ONCE))
    context.commit()
    log.warning("%s: dropped with %d live messages: %s", segment.path, released, reason)
    return CollectionResult(source.name, segment.size, 0, outcome="dropped", dropped=released)


def _release(context: GcContext, source: PinnedSegment, live: Live) -> int:
    """Return how many of the records were still alive. Caller holds the state lock."""
    index, died = context.index, source.died
    locations = live.locations(source.segment.number)
    ids = [msg_id for msg_id, location in zip(live.ids, locations, strict=True) if location not in died]
    released = index.release([msg_id for msg_id in ids for _ in range(index.references(msg_id))])
    context.accounting.mark_dead(released.freed)
    return len(ids)
