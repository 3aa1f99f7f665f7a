"""Rescued counts: reference counts that an index has read from its damaged files. Messages that a rebuild finds keep them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice

from msgstore.contract import RESCUED_KEY, Index
from msgstore.engine.open.recovery import BATCH, Recovery
from msgstore.engine.segment.segments import Segments

log = logging.getLogger("msgstore.recovery")


def rescued_counts(index: Index, state: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Return the counts above one by id. Call it before the rebuild, which clears the index."""
    if RESCUED_KEY not in state:
        return {}
    return {msg_id: count for msg_id, _, count in index.items() if count > 1}


def restore_counts(segments: Segments, index: Index, rescued: Mapping[bytes, int], recovery: Recovery) -> None:
    """Give the counts to the messages that a rebuild has found. The others keep one reference."""
    if recovery.how != "rebuild" or not rescued:
        return
    rest, restored = iter(rescued.items()), 0
    while batch := list(islice(rest, BATCH)):
        found = [(msg_id, at, count) for msg_id, count in batch if (at := index.get(msg_id)) is not None]
        if found:
            index.enter(*zip(*found, strict=True))
        restored += len(found)
    log.warning(
        "%s: %d of %d messages have the counts that were read from the damaged index; every other one has one reference",
        segments.directory,
        restored,
        recovery.entered,
    )
