"""GC context: what the actions of a collection work with, and the locks that they take.

A collection runs next to writers, readers and removers. It holds the GC lock throughout, and the flush lock in short slices.
Lock order: GC lock, flush lock, state lock.
"""

from __future__ import annotations

import threading

import attrs

from msgstore.contract.events import CollectionOutcome
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.plugins.loader import Provider
from msgstore.scan import OpenFormat


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


class GcContext:
    """One instance per open store."""

    def __init__(
        self,
        accounting: LiveAccounting,
        form: OpenFormat,
        size_limit: int,
        index_name: str,
        index_provider: Provider | None,
    ) -> None:
        self.accounting = accounting
        self.segments = accounting.segments
        self.index = accounting.index
        self.state_lock = accounting.state_lock
        self.flush_lock = accounting.flush_lock
        self.gc_lock = threading.Lock()
        """Held by the one thread that collects, and by a thread that closes the store."""
        self.form = form
        """Format of new copies."""
        self.size_limit = size_limit
        self.index_name = index_name
        self.index_provider = index_provider
        """Distribution of the index, for error messages."""

    def commit(self) -> None:
        """Commit all changes so far, records that the index points to included. Takes the flush lock. Raises StoreIOError."""
        with self.flush_lock:
            self.commit_locked()

    def commit_locked(self) -> None:
        """Same as ``commit``. Caller holds the flush lock."""
        self.segments.sync_written()
        self.accounting.commit()
