"""Options of the journal engine."""

from __future__ import annotations

import attrs

from msgstore.contract import Duration, Size
from msgstore_kestrel_journal.replay import capped_expiry


@attrs.frozen
class JournalOptions:
    """Limits and thresholds, with Kestrel's defaults."""

    max_items: int | None = None
    max_size: Size | None = None
    """Bytes of the items of a queue. The last one may exceed it."""
    max_item_size: Size | None = None
    max_age: Duration | None = None
    """Longest time of an item in the queue."""
    discard_old_when_full: bool = False
    """A full queue drops its oldest items. Otherwise it refuses new ones."""
    open_transaction_timeout: Duration | None = None
    """Time after which an item that was reserved returns to the queue."""
    default_journal_size: Size = Size(16 * 2**20)
    """The journal of an empty queue is rewritten from this size on."""
    max_memory_size: Size = Size(128 * 2**20)
    """Bytes of items in memory, and of the live file. Further items are read from the journal when it is their turn."""
    max_journal_size: Size = Size(2**30)
    """Bytes of all files from which on a rotated file is packed."""
    min_journal_compact_delay: Duration = Duration(60.0)
    """Shortest time between two rewrites that the next two options allow."""
    rewrite_in_memory: bool = False
    """Rewrite a journal that is larger than ``max_journal_size`` while all items are in memory."""
    disable_aggressive_rewrites: bool = False
    """Do not rewrite the journal of an empty queue again and again if the open items fill half of ``default_journal_size``."""
    sync_journal: Duration | None = Duration(0.1)
    """Time from a change to its sync; 0: before the call returns. None: only where files are replaced, and at ``close``."""
    cut_damage: bool = False
    """Cut a file at damage, as Kestrel does. Otherwise only a torn end of the live file is cut, and damage is an error."""

    def capped(self, expiry_ms: int, add_ms: int) -> int:
        """Return the expiry of an item that was added at this time, with ``max_age``."""
        if self.max_age is None:
            return expiry_ms
        return capped_expiry(expiry_ms, add_ms, add_ms, round(self.max_age * 1000))
