"""What happens to one store: counted, logged, and announced to observers. One method for each kind of thing.

Methods are called where the thing happens, some under the store's lock; each is a few assignments, a log record if
anybody wants it, and an event if anybody observes. They happen per flush, per segment or per store. None raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from msgstore.contract import events
from msgstore.engine.events.counters import Counters
from msgstore.engine.events.event_dispatcher import EventDispatcher
from msgstore.plugins.loader import Observer

if TYPE_CHECKING:
    from msgstore.engine.compact.collection_result import CollectionResult
    from msgstore.engine.open.recovery import Recovery
    from msgstore.engine.segment.segment import Segment

_store = logging.getLogger("msgstore.store")
_recovery = logging.getLogger("msgstore.recovery")
_segments = logging.getLogger("msgstore.segments")
_collector = logging.getLogger("msgstore.collection")

MAX_SPOTS = 10_000
"""Damaged spots that are remembered, so that each is announced once."""


class Telemetry:
    """Of one store, from before its recovery until it is closed."""

    def __init__(self, store: Path, observers: Sequence[Observer] = ()) -> None:
        self.store = store
        self.counters = Counters()
        self.dispatcher = EventDispatcher(store, observers)
        self._spots: set[tuple[str, int | None]] = set()

    # -- the store --------------------------------------------------------------------------------------------------------

    def recovered(self, recovery: Recovery, seconds: float) -> None:
        """Nothing is said of an opening for which nothing had to be read."""
        if recovery.how == "new" or (recovery.how == "trust" and not recovery.scanned):
            return
        read = len(recovery.scanned), len(recovery.hinted), recovery.entered, recovery.garbage
        what = "%s: recovered (%s) in %.3f s: %d segments read, %d hints, %d live records, %d dead or copies"
        _recovery.info(what, self.store, recovery.how, seconds, *read)
        self.dispatcher.publish(events.RecoveryFinishedEvent(store=self.store, recovery=summary(recovery), seconds=seconds))

    def opened(
        self,
        *,
        mode: Literal["rw", "r"],
        index: str,
        form: str,
        recovery: Recovery,
        statistics: Callable[[], Mapping[str, int]],
    ) -> None:
        _store.info("%s: opened, mode %s, index %s, format %s, %s", self.store, mode, index, form, recovery.how)
        self.dispatcher.publish(
            events.StoreOpenedEvent(
                store=self.store, mode=mode, index=index, format=form, recovery=summary(recovery), statistics=statistics
            )
        )

    def closed(self, how: Literal["closed", "abandoned"]) -> None:
        """The last thing that happens."""
        _store.info("%s: %s", self.store, how)
        self.dispatcher.publish(events.StoreClosedEvent(store=self.store, how=how))
        self.dispatcher.finish()

    def failed_to_open(self) -> None:
        """Without any lock."""
        self.dispatcher.finish()
        self.dispatcher.wait()

    def damage(self, file: str, offset: int | None, reason: str) -> None:
        """Whoever meets damage has logged it with its consequences."""
        spot = file, offset
        if spot in self._spots or len(self._spots) >= MAX_SPOTS:
            return
        self._spots.add(spot)
        self.counters.corruptions += 1
        self.dispatcher.publish(events.CorruptionFoundEvent(store=self.store, file=file, offset=offset, reason=reason))

    # -- its segments -----------------------------------------------------------------------------------------------------

    def wrote(self, appended: Iterable[tuple[Segment, int, int]]) -> None:
        """A flush appended this: (segment, records, bytes)."""
        self.counters.flushes += 1
        for _, messages, size in appended:
            self.counters.written_messages += messages
            self.counters.written_bytes += size

    def rolled(self, file: str, form: str) -> None:
        self.counters.rolled_segments += 1
        _segments.debug("%s: %s begun", self.store, file)
        self.dispatcher.publish(events.SegmentRolledEvent(store=self.store, file=file, format=form))

    def deleted(self, file: str, size: int) -> None:
        self.counters.deleted_segments += 1
        self.counters.collected_bytes += size
        _segments.debug("%s: %s deleted, %d bytes", self.store, file, size)
        self.dispatcher.publish(events.SegmentDeletedEvent(store=self.store, file=file, size=size))

    def collected(self, found: CollectionResult, seconds: float) -> None:
        """``found.size_after`` is 0 if the segment was deleted: ``deleted`` is told of that as well."""
        if found.outcome != "none":
            self.counters.collections += 1
            if found.size_after:
                self.counters.collected_bytes += found.size_before - found.size_after
        what = "%s: %s %s: %d bytes before, %d after, %d moved, %.3f s"
        sizes = found.size_before, found.size_after, found.moved_bytes
        _collector.info(what, self.store, found.file, found.outcome, *sizes, seconds)
        self.dispatcher.publish(
            events.CollectionFinishedEvent(
                store=self.store,
                file=found.file,
                outcome=found.outcome,
                size_before=found.size_before,
                size_after=found.size_after,
                moved_records=found.moved_records,
                moved_bytes=found.moved_bytes,
                written=found.written,
                seconds=seconds,
                dropped=found.dropped,
                skipped=found.skipped,
            )
        )

    def dropped(self, file: str, messages: int, size: int, reason: str) -> None:
        """Retention gives ``messages`` up; their segment goes as any other that is empty."""
        self.counters.dropped_messages += messages
        self.counters.dropped_segments += 1
        _collector.info("%s: %d messages of %s dropped: %s", self.store, messages, file, reason)
        self.dispatcher.publish(
            events.MessagesDroppedEvent(store=self.store, file=file, messages=messages, bytes=size, reason=reason)
        )


def summary(recovery: Recovery) -> dict[str, Any]:
    """Return the members of the recovery as they are now."""
    return attrs.asdict(recovery)
