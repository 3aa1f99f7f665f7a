"""What collection did, as ``store.compact()`` and the command line tell it."""

from __future__ import annotations

import attrs

from msgstore.contract.events import CollectionOutcome


@attrs.frozen
class CollectionResult:
    """What happened to one segment. Sizes in bytes."""

    file: str
    """The segment's name."""
    size_before: int
    """Of the file."""
    size_after: int
    """0 if the segment was deleted."""
    moved_records: int = 0
    """How many live records moved."""
    moved_bytes: int = 0
    """Of these."""
    written: int = 0
    """Bytes written: the moved records, and what holes cost."""
    skipped: str | None = None
    """Why it was left as it is."""
    outcome: CollectionOutcome = "compacted"
    """What was done with it: ``compacted``, ``combined``, ``migrated``, ``dropped``, ``deleted``, or ``none``."""
    dropped: int = 0
    """Live messages that went with it, because the policy says so."""
