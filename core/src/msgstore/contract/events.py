"""Events: what an observer is told of a store. Values, made when a thing has happened; none of them carries a message.

Each fires per segment or per store. Observers are called on one thread of the store's own, one event at a time, in the order
in which things happened, without any lock of the store: an observer may use the store, and may take its time. One that
raises is logged with its distribution and counted (``store.stats().observer_failures``); it never fails a write.

A complete plugin that says when damage was found::

    from msgstore import hookimpl

    @hookimpl
    def msgstore_corruption_found(event):
        send_mail(f"{event.store}: {event.file} at {event.offset}: {event.reason}")

An event may get more members in a minor version of the contract. Sizes are in bytes, of whole files or records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import attrs

Done = Literal["compacted", "combined", "migrated", "dropped", "deleted", "none"]
"""What a collection did with a segment; ``none`` if nothing was to be gained, or if it was skipped."""


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened to one store."""

    store: Path
    """The store's directory."""


@attrs.frozen(kw_only=True)
class RecoverySummary:
    """How a store came up."""

    how: str
    """new, trust, tail, reconciled, rebuild, or taken over."""
    scanned: tuple[str, ...] = ()
    """Segments that were read, in whole or in part."""
    hinted: tuple[str, ...] = ()
    """Segments whose hint was read instead."""
    entered: int = 0
    """Live records that were found so."""
    garbage: int = 0
    """Dead records and copies that were found so."""
    missing: int = 0
    """Ids that the given reference counts name, or the index of a store that has lost a segment, and that no segment holds."""
    kept: int = 0
    """Messages that keep the counts of a saved index which does not fit the directory."""
    revived: int = 0
    """Messages that are live again, with one reference, and may have been removed before: the index had them as removed, or
    does not know their segment."""
    distrust: str | None = None
    """Why the saved counts were not taken as they were; None if they were, or if there were none."""
    damaged: tuple[str, ...] = ()
    """One line for each damaged spot, writes that were cut off included: file, offset, reason. Then one for each
    segment that is missing or shortened."""


@attrs.frozen(kw_only=True)
class StoreOpened(Event):
    """The store serves. The first event of an opening is ``RecoveryFinished`` if there was anything to recover."""

    mode: str
    """``rw`` or ``r``."""
    index: str
    """The name of its index."""
    format: str
    """The name of the format of new segments."""
    recovery: RecoverySummary
    """How it came up."""
    statistics: Callable[[], Mapping[str, int]]
    """A snapshot of ``store.stats()`` as numbers, by name; empty once the store is closed. It may be called on any thread, and
    does not keep the store alive."""


@attrs.frozen(kw_only=True)
class StoreClosed(Event):
    """The last event of a store."""

    how: Literal["closed", "abandoned"]
    """``closed``, or ``abandoned``: let go of as a killed process would."""


@attrs.frozen(kw_only=True)
class SegmentRolled(Event):
    """A segment was begun; the one before it, if any, is not written any more."""

    file: str
    """The new segment's name."""
    format: str
    """Its format."""


@attrs.frozen(kw_only=True)
class RecoveryFinished(Event):
    """Segments had to be read, or another index to be taken over, and that is done. The store may still fail to open."""

    recovery: RecoverySummary
    """What was read, and what was found."""
    seconds: float
    """What it took."""


@attrs.frozen(kw_only=True)
class CorruptionFound(Event):
    """Bytes that nobody wrote. Announced once a spot for as long as the store is open."""

    file: str
    """The segment's name."""
    offset: int | None
    """None if it is the segment as a whole that cannot be trusted."""
    reason: str
    """One word with underscores, such as ``checksum_mismatch``."""


@attrs.frozen(kw_only=True)
class CollectionFinished(Event):
    """The collector is done with one segment."""

    file: str
    """The segment's name."""
    done: Done
    """``compacted``, ``combined``, ``migrated``, ``dropped``, ``deleted``, or ``none``: nothing was to be gained, or it was
    skipped."""
    size_before: int
    """Of the file."""
    size_after: int
    """0 if the segment is gone."""
    moved_records: int
    """How many live records moved."""
    moved_bytes: int
    """Of these."""
    written: int
    """Bytes that were written for it."""
    seconds: float
    """What it took."""
    dropped: int = 0
    """Live messages that went with it, because the policy says so."""
    skipped: str | None
    """Why the segment was left as it is; None if it was not."""


@attrs.frozen(kw_only=True)
class SegmentDeleted(Event):
    """A segment was unlinked."""

    file: str
    """The segment's name."""
    size: int
    """Of the file."""


@attrs.frozen(kw_only=True)
class MessagesDropped(Event):
    """Live messages were given up: a policy of retention deleted their segment."""

    file: str
    """The segment's name."""
    messages: int
    """How many were alive."""
    bytes: int
    """Of their records."""
    reason: str
    """Why, in the policy's words."""
