"""Telemetry: counts, logs and publishes what happens to one store. One method per kind of event.

Methods are called where the event happens, some with the state lock held: per flush, per segment or per store, never per
message. None of them raises.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs

from msgstore.contract import StoreClosed, events
from msgstore.contract.events import CollectionFinishedEvent
from msgstore.engine.events.event_dispatcher import EventDispatcher
from msgstore.plugins.loader import Observer


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
    """Bytes that compaction in place truncated, and sizes of deleted segments. Copies of live records are not subtracted."""
    corruptions: int = 0
    """Damaged spans that were found."""
    dropped_messages: int = 0
    """Live messages that retention deleted."""
    dropped_segments: int = 0
    """Segments that they were in."""
    observer_failures: int = 0
    """Times that an observer raised, and events that were dropped."""


_store_log = logging.getLogger("msgstore.store")
_recovery_log = logging.getLogger("msgstore.recovery")
_segments_log = logging.getLogger("msgstore.segments")
_collection_log = logging.getLogger("msgstore.collection")

MAX_SPANS = 10_000
"""Damaged spans that are remembered, so that each is published once."""


class Telemetry:
    """One instance per store, from before its recovery until it is closed."""

    def __init__(self, store: Path, observers: Sequence[Observer] = ()) -> None:
        self.store = store
        self.counters = Counters()
        self.dispatcher = EventDispatcher(store, observers)
        self._spans: set[tuple[str, int | None]] = set()

    # -- the store --------------------------------------------------------------------------------------------------------

    def recovered(self, recovery: Mapping[str, Any], seconds: float) -> None:
        """Log and publish a recovery, unless the store is new or the saved index was used without a scan. ``recovery`` has the
        members of :class:`msgstore.engine.open.recovery_plan.Recovery`."""
        how, scanned = recovery["how"], recovery["scanned"]
        if how == "new" or (how == "trust" and not scanned):
            return
        numbers = len(scanned), len(recovery["hinted"]), recovery["entered"], recovery["garbage"]
        what = "%s: recovered (%s) in %.3f s: %d segments read, %d hints, %d live records, %d dead or copies"
        _recovery_log.info(what, self.store, how, seconds, *numbers)
        self.dispatcher.publish(events.RecoveryFinishedEvent(store=self.store, recovery=recovery, seconds=seconds))

    def opened(
        self,
        *,
        mode: Literal["rw", "r"],
        index: str,
        form: str,
        recovery: Mapping[str, Any],
        statistics: Callable[[], Mapping[str, int]],
    ) -> None:
        """Log and publish that the store is open."""
        _store_log.info("%s: opened, mode %s, index %s, format %s, %s", self.store, mode, index, form, recovery["how"])
        self.dispatcher.publish(
            events.StoreOpenedEvent(
                store=self.store,
                mode=mode,
                index=index,
                format=form,
                recovery=recovery,
                statistics=statistics,
            )
        )

    def closed(self, how: Literal["closed", "abandoned"]) -> None:
        """Log and publish the end of the store. No event follows."""
        _store_log.info("%s: %s", self.store, how)
        self.dispatcher.publish(events.StoreClosedEvent(store=self.store, how=how))
        self.dispatcher.finish()

    def failed_to_open(self) -> None:
        """End the dispatcher after a failed opening. Caller holds no lock."""
        self.dispatcher.finish()
        self.dispatcher.wait()

    def damage(self, file: str, offset: int | None, reason: str) -> None:
        """Count and publish a damaged span, once. The caller has logged it with its consequences."""
        span = file, offset
        if span in self._spans or len(self._spans) >= MAX_SPANS:
            return
        self._spans.add(span)
        self.counters.corruptions += 1
        self.dispatcher.publish(events.CorruptionFoundEvent(store=self.store, file=file, offset=offset, reason=reason))

    # -- its segments -----------------------------------------------------------------------------------------------------

    def wrote(self, appended: Iterable[tuple[object, int, int]]) -> None:
        """Count the (segment, records, bytes) that a flush appended."""
        self.counters.flushes += 1
        for _, messages, size in appended:
            self.counters.written_messages += messages
            self.counters.written_bytes += size

    def rolled(self, file: str, form: str) -> None:
        """Count, log and publish a new segment."""
        self.counters.rolled_segments += 1
        _segments_log.debug("%s: %s started", self.store, file)
        self.dispatcher.publish(events.SegmentRolledEvent(store=self.store, file=file, format=form))

    def segment_deleted(self, file: str, size: int) -> None:
        """Count, log and publish a deleted segment."""
        self.counters.deleted_segments += 1
        self.counters.collected_bytes += size
        _segments_log.debug("%s: %s deleted, %d bytes", self.store, file, size)
        self.dispatcher.publish(events.SegmentDeletedEvent(store=self.store, file=file, size=size))

    def collected(self, result: CollectionFinishedEvent) -> None:
        """Count, log and publish a collection. A deleted segment is also counted by ``segment_deleted``."""
        if result.outcome != "none":
            self.counters.collections += 1
            if result.size_after:
                self.counters.collected_bytes += result.size_before - result.size_after
        what = "%s: %s %s: %d bytes before, %d after, %d moved, %.3f s"
        sizes = result.size_before, result.size_after, result.moved_bytes
        _collection_log.info(what, self.store, result.file, result.outcome, *sizes, result.seconds)
        self.dispatcher.publish(result)

    def dropped(self, file: str, messages: int, size: int, reason: str) -> None:
        """Count, log and publish live messages that retention deletes. ``segment_deleted`` follows for their segment."""
        self.counters.dropped_messages += messages
        self.counters.dropped_segments += 1
        _collection_log.info("%s: %d messages of %s dropped: %s", self.store, messages, file, reason)
        self.dispatcher.publish(
            events.MessagesDroppedEvent(store=self.store, file=file, messages=messages, bytes=size, reason=reason)
        )


class HasStats(Protocol):
    """A store."""

    def stats(self) -> Any:
        """Return an attrs object with numbers, and ``counters`` among them. Raises StoreClosed."""


def statistics_of(store: HasStats) -> Callable[[], Mapping[str, int]]:
    """Return a function that gives ``store.stats()`` as numbers; nothing once the store is closed or gone."""
    reference = weakref.ref(store)

    def statistics() -> Mapping[str, int]:
        there = reference()
        try:
            stats = there.stats() if there is not None else None
        except StoreClosed:
            stats = None
        if stats is None:
            return {}
        own = attrs.asdict(stats, recurse=False)
        return {name: value for name, value in own.items() if isinstance(value, int)} | attrs.asdict(stats.counters)

    return statistics
