"""Statistics of a store, and its messages as tools list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from msgstore.contract import SegmentStats
from msgstore.engine.events import Counters
from msgstore.engine.open.recovery_plan import Recovery


@attrs.frozen
class StoreStats:
    """Statistics of a store at one moment. Sizes in bytes, of whole records."""

    messages: int
    """Live messages, buffered ones included."""
    pending: int
    """Messages in the write buffer."""
    segments: int
    """Segment files."""
    bytes_on_disk: int
    """Size of all segments."""
    live_bytes: int
    """Size of the records of live messages."""
    garbage_bytes: int
    """Bytes that a collection can free, at most."""
    quarantined: int
    """Damaged segments."""
    callback_failures: int
    """Times that an ``on_confirm`` raised."""
    recovery: Recovery
    """Result of the recovery at opening."""
    counters: Counters
    """Numbers of events since the store was opened."""

    @property
    def observer_failures(self) -> int:
        """Times that an observer raised, and events that were dropped."""
        return self.counters.observer_failures


@attrs.frozen
class StoredMessage:
    """One live message that is on disk, for tools."""

    msg_id: bytes
    """16 bytes."""
    number: int
    """Number of the segment."""
    offset: int
    """Offset of the record in the segment."""
    size: int
    """Size of the record."""
    references: int
    """Number of references."""
    location: int
    """Number, offset and size in one integer (:mod:`msgstore.locations`)."""


def sums_of(segments: Sequence[SegmentStats]) -> dict[str, Any]:
    """Return the members of StoreStats that are sums over the segments."""
    return {
        "segments": len(segments),
        "bytes_on_disk": sum(s.size for s in segments),
        "live_bytes": sum(s.live_bytes for s in segments),
        "garbage_bytes": sum(s.garbage_bytes for s in segments),
        "quarantined": sum(s.quarantined for s in segments),
    }
