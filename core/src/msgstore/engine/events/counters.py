"""Counters: what an open store has done. Counted per flush, segment or damaged span, never per message."""

from __future__ import annotations

import attrs


@attrs.define
class Counters:
    """Numbers since the store was opened. Sizes in bytes, of whole records or files. Guarded by the state lock."""

    written_messages: int = 0
    """Messages written to disk; a second reference is not counted."""
    written_bytes: int = 0
    """Size of their records."""
    revived_messages: int = 0
    """Removed messages that were written again while their record still existed."""
    removed_messages: int = 0
    """Messages on disk that lost their last reference. Calculated when it is asked for."""
    flushes: int = 0
    """Flushes that wrote something."""
    rolled_segments: int = 0
    """Segments that were started."""
    deleted_segments: int = 0
    """Segments that were deleted."""
    collections: int = 0
    """Segments that were collected."""
    collected_bytes: int = 0
    """Bytes that compaction in place truncated, and the sizes of deleted segments. Copies of live records are not subtracted."""
    corruptions: int = 0
    """Damaged spans that were found."""
    dropped_messages: int = 0
    """Live messages that retention deleted."""
    dropped_segments: int = 0
    """Segments that they were in."""
    observer_failures: int = 0
    """Times that an observer raised, and events that were dropped."""
