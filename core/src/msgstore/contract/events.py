"""Events: what observers are notified of. An event is published per store or per segment and holds no message.

Observers are called on one thread of the store, one event at a time, in order, without any lock: an observer may use the
store, and may take its time. One that raises is logged and counted (``store.stats().observer_failures``). Sizes are in bytes,
of whole files or records; ``file`` is the name of a segment; ``recovery`` has the members of ``store.stats().recovery``.
A complete observer::

    from msgstore import hookimpl

    @hookimpl
    def msgstore_corruption_found(event):
        send_mail(f"{event.store}: {event.file} at {event.offset}: {event.reason}")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

CollectionOutcome = Literal["compacted", "combined", "migrated", "dropped", "deleted", "none"]
"""What a collection did with a segment; ``none`` if there was nothing to gain or the segment was skipped."""


@attrs.frozen(kw_only=True)
class Event:
    """Base class of all events."""

    store: Path
    options: Mapping[str, Any] = attrs.field(factory=dict, eq=False)
    """Options of the observer that is called: the table ``observers.ENTRYPOINT`` of the store's configuration."""


@attrs.frozen(kw_only=True)
class StoreOpenedEvent(Event):
    """The store is open, with the index ``index`` and the format ``format`` for new segments."""

    mode: Literal["rw", "r"]
    index: str
    format: str
    recovery: Mapping[str, Any]
    statistics: Callable[[], Mapping[str, int]]
    """Returns the numbers of ``store.stats()`` by name; empty once the store is closed. Thread-safe."""


@attrs.frozen(kw_only=True)
class StoreClosedEvent(Event):
    """The store is closed, or ``abandoned``: without a clean shutdown. No event follows."""

    how: Literal["closed", "abandoned"]


@attrs.frozen(kw_only=True)
class SegmentRolledEvent(Event):
    """A new segment was created; the one before it is sealed."""

    file: str
    format: str


@attrs.frozen(kw_only=True)
class RecoveryFinishedEvent(Event):
    """A recovery that read segments is done. The store may still fail to open; else ``StoreOpenedEvent`` follows."""

    recovery: Mapping[str, Any]
    seconds: float


@attrs.frozen(kw_only=True)
class CorruptionFoundEvent(Event):
    """Damaged bytes were found. Published once per file and offset while the store is open."""

    file: str
    offset: int | None
    """None if the whole segment cannot be trusted."""
    reason: str
    """One word with underscores, such as ``checksum_mismatch``."""


@attrs.frozen(kw_only=True)
class CollectionFinishedEvent(Event):
    """One segment was collected or skipped. Members as those of ``CollectionResult``."""

    file: str
    outcome: CollectionOutcome
    size_before: int
    size_after: int
    moved_records: int
    moved_bytes: int
    written: int
    seconds: float
    dropped: int = 0
    skipped: str | None


@attrs.frozen(kw_only=True)
class SegmentDeletedEvent(Event):
    """A segment was deleted."""

    file: str
    size: int


@attrs.frozen(kw_only=True)
class MessagesDroppedEvent(Event):
    """A retention policy deleted a segment with live messages, for the reason that the policy gave."""

    file: str
    messages: int
    bytes: int
    reason: str
