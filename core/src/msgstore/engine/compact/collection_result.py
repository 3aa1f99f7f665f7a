"""Result of a collection, as ``store.compact()`` and the command line report it."""

from __future__ import annotations

import attrs

from msgstore.contract.events import CollectionOutcome


@attrs.frozen
class CollectionResult:
    """Result of one segment. Sizes in bytes."""

    file: str
    """Name of the segment."""
    size_before: int
    """Size of the file."""
    size_after: int
    """Size of the file; 0 if it was deleted."""
    moved_records: int = 0
    """Number of live records that were moved."""
    moved_bytes: int = 0
    """Size of these records."""
    written: int = 0
    """Bytes written: moved records and hole headers."""
    skipped: str | None = None
    """Why the segment was skipped, or None."""
    outcome: CollectionOutcome = "compacted"
    """What was done: ``compacted``, ``combined``, ``migrated``, ``dropped``, ``deleted`` or ``none``."""
    dropped: int = 0
    """Live messages that the policy deleted."""
