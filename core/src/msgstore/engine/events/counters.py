"""What an open store has done, in numbers. Counted once a flush, a segment or a spot, never once a message."""

from __future__ import annotations

import attrs


@attrs.define
class Counters:
    """Since the store was opened. Sizes in bytes, of whole records or files. Changed under the store's lock."""

    written_messages: int = 0
    """Messages that were put on disk; a second reference to one is not another."""
    written_bytes: int = 0
    """Of the records of these."""
    revived_messages: int = 0
    """Messages that were removed, and whose record was still there when they were written again."""
    removed_messages: int = 0
    """Messages whose last reference was taken after they were on disk. Not counted but calculated, when it is asked for: what
    was there and what came, less what is there and what was dropped."""
    flushes: int = 0
    """Flushes that had something to write."""
    rolled_segments: int = 0
    """Segments that were begun."""
    deleted_segments: int = 0
    """Segments that were unlinked."""
    collections: int = 0
    """Segments that the collector has rewritten."""
    collected_bytes: int = 0
    """Bytes that compaction in place cut off, and the sizes of deleted segments. Copies of live records are not subtracted."""
    corruptions: int = 0
    """Spots at which damage was found."""
    dropped_messages: int = 0
    """Live messages that retention gave up."""
    dropped_segments: int = 0
    """Segments that they were in."""
    observer_failures: int = 0
    """Times that an observer raised, and events that none could be told of because they had too many to work off."""
