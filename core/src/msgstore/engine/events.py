"""Events: counters, log records and events of one store, and the thread that calls observers.

``Telemetry`` has one method per kind of event. They are called where the event happens, some with the state lock held: per
flush, per segment or per store, never per message. None of them raises. Observers run on a thread of their own, so that none
delays a store. The classes of events are in ``msgstore.contract.events``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from logging import DEBUG, INFO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import attrs

from msgstore.contract import StoreClosed, events
from msgstore.contract.events import CollectionFinishedEvent, Event
from msgstore.plugins.loader import EVENT_HOOKS, Observer

_observers_log = logging.getLogger("msgstore.observers")

MAX_WAITING = 10_000
"""Events that may wait. Later ones are counted and dropped: an observer that hangs must not fill the memory."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time that ``wait`` waits for observers."""


class EventDispatcher:
    """Calls the observers of one store, one by one, on the thread ``msgstore-observers PATH``. Without observers: no thread.

    ``publish`` and ``finish`` may be called from any thread and under any lock: they only fill a queue, and never raise.
    """

    def __init__(self, store: Path, observers: Sequence[Observer] = ()) -> None:
        self.store = store
        self.failures = 0
        """Times that an observer raised, and events that were dropped."""
        self.in_callback: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        """Set by the store: entered around each call of an observer."""
        self._by_class = {made: [o for o in observers if o.hook == hook] for hook, made in EVENT_HOOKS.items()}
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self._is_finished = not observers
        self._thread = threading.Thread(target=self._run, name=f"msgstore-observers {store}", daemon=True)
        if observers:
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread is available: the store opens all the same
                self.failures, self._is_finished = 1, True
                _observers_log.warning("%s: no observer is called: %s", store, error)

    def publish(self, event: Event) -> None:
        """Queue an event for its observers."""
        if self._is_finished or not self._by_class[type(event)]:
            return
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(event)
        else:
            self.failures += 1

    def finish(self) -> None:
        """Publish nothing more; the thread ends after the last event. A second call does nothing."""
        if not self._is_finished:
            self._is_finished = True
            self._waiting.put(None)

    def wait(self) -> None:
        """Wait for the thread after ``finish``, for a limited time. Caller holds no lock."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_SECONDS)
            if self._thread.is_alive():
                what = "%s: an observer has not returned within %g s; the store does not wait for it"
                _observers_log.warning(what, self.store, CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            for observer in self._by_class[type(event)]:
                try:
                    with self.in_callback():
                        observer.call(event)
                except BaseException:  # sys.exit() too: the other observers go on
                    self.failures += 1
                    _observers_log.exception("%s: %s of %s failed", self.store, observer.hook, observer.provider)


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
    """Batches that flushes and drains have written."""
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


MAX_SPANS = 10_000
"""Damaged spans that are remembered, so that each is published once."""


def _recovery_text(event: Any) -> str:
    found, numbers = event.recovery, (len(event.recovery["scanned"]), len(event.recovery["hinted"]))
    what = "recovered (%s) in %.3f s: %d segments read, %d hints, %d live records, %d dead or copies"
    return what % (found["how"], event.seconds, *numbers, found["entered"], found["garbage"])


def _collection_text(event: Any) -> str:
    sizes = f"{event.size_before} bytes before, {event.size_after} after, {event.moved_bytes} moved"
    return f"{event.file} {event.outcome}: {sizes}, {event.seconds:.3f} s"


_RECORDS: dict[type[Event], tuple[str, int, Callable[[Any], str]]] = {
    events.RecoveryFinishedEvent: ("recovery", INFO, _recovery_text),
    events.StoreOpenedEvent: (
        "store", INFO, lambda e: f"opened, mode {e.mode}, index {e.index}, format {e.format}, {e.recovery['how']}",
    ),
    events.StoreClosedEvent: ("store", INFO, lambda e: str(e.how)),
    events.SegmentRolledEvent: ("segments", DEBUG, lambda e: f"{e.file} started"),
    events.SegmentDeletedEvent: ("segments", DEBUG, lambda e: f"{e.file} deleted, {e.size} bytes"),
    events.CollectionFinishedEvent: ("collection", INFO, _collection_text),
    events.MessagesDroppedEvent: ("collection", INFO, lambda e: f"{e.messages} messages of {e.file} dropped: {e.reason}"),
}  # fmt: skip
"""Logger, level and text of the log record of each kind of event. Damage is logged where it is found, with its consequences."""


class Telemetry:
    """One instance per store, from before its recovery until it is closed."""

    def __init__(self, store: Path, observers: Sequence[Observer] = ()) -> None:
        self.store = store
        self.counters = Counters()
        self.dispatcher = EventDispatcher(store, observers)
        self._spans: set[tuple[str, int | None]] = set()

    def _note(self, event: Event) -> None:
        """Log and publish an event."""
        name, level, text = _RECORDS[type(event)]
        log = logging.getLogger(f"msgstore.{name}")
        if log.isEnabledFor(level):
            log.log(level, "%s: %s", self.store, text(event))
        self.dispatcher.publish(event)

    def recovered(self, recovery: Mapping[str, Any], seconds: float) -> None:
        """Note a recovery, unless the store is new or the saved index was used without a scan. ``recovery`` has the members of
        :class:`msgstore.engine.open.recovery_plan.Recovery`."""
        if recovery["how"] != "new" and (recovery["how"] != "trust" or recovery["scanned"]):
            self._note(events.RecoveryFinishedEvent(store=self.store, recovery=recovery, seconds=seconds))

    def opened(self, **members: Any) -> None:
        """Note that the store is open. ``members``: of the event."""
        self._note(events.StoreOpenedEvent(store=self.store, **members))

    def closed(self, how: Literal["closed", "abandoned"]) -> None:
        """Note the end of the store. No event follows."""
        self._note(events.StoreClosedEvent(store=self.store, how=how))
        self.dispatcher.finish()

    def failed_to_open(self) -> None:
        """End the dispatcher after a failed opening. Caller holds no lock."""
        self.dispatcher.finish()
        self.dispatcher.wait()

    def damage(self, file: str, offset: int | None, reason: str) -> None:
        """Count and publish a damaged span, once."""
        span = file, offset
        if span in self._spans or len(self._spans) >= MAX_SPANS:
            return
        self._spans.add(span)
        self.counters.corruptions += 1
        self.dispatcher.publish(events.CorruptionFoundEvent(store=self.store, file=file, offset=offset, reason=reason))

    def wrote(self, appended: Iterable[tuple[object, int, int]]) -> None:
        """Count the (segment, records, bytes) that a flush appended."""
        self.counters.flushes += 1
        for _, messages, size in appended:
            self.counters.written_messages += messages
            self.counters.written_bytes += size

    def rolled(self, file: str, form: str) -> None:
        """Count and note a new segment."""
        self.counters.rolled_segments += 1
        self._note(events.SegmentRolledEvent(store=self.store, file=file, format=form))

    def segment_deleted(self, file: str, size: int) -> None:
        """Count and note a deleted segment."""
        self.counters.deleted_segments += 1
        self.counters.collected_bytes += size
        self._note(events.SegmentDeletedEvent(store=self.store, file=file, size=size))

    def collected(self, result: CollectionFinishedEvent) -> None:
        """Count and note a collection. A deleted segment is also counted by ``segment_deleted``."""
        if result.outcome != "none":
            self.counters.collections += 1
            if result.size_after:
                self.counters.collected_bytes += result.size_before - result.size_after
        self._note(result)

    def dropped(self, file: str, messages: int, size: int, reason: str) -> None:
        """Count and note live messages that retention deletes. ``segment_deleted`` follows for their segment."""
        self.counters.dropped_messages += messages
        self.counters.dropped_segments += 1
        self._note(events.MessagesDroppedEvent(store=self.store, file=file, messages=messages, bytes=size, reason=reason))


def statistics_of(store: Any) -> Callable[[], Mapping[str, int]]:
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
