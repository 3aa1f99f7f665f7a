"""Telemetry: counts, logs and publishes what happens to one store. One method per kind of event.

Methods are called where the event happens, some with the state lock held. They happen per flush, per segment or per store, never
per message, and none of them raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgstore.contract import events
from msgstore.contract.events import CollectionFinishedEvent
from msgstore.engine.events.counters import Counters
from msgstore.engine.events.event_dispatcher import EventDispatcher
from msgstore.plugins.loader import Observer

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
        members of :class:`msgstore.engine.open.recovery.Recovery`."""
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
