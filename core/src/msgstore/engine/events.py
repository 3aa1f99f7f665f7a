"""Telemetry: counters, log records and events of one store, and the thread that calls its observers.

``note`` and ``damage`` are called where an event happens, some with the state lock held: per flush, per segment or per store,
never per message. Observers run on a thread of their own, so that none delays a store. The classes of events are in
``msgstore.contract.events``.
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
from types import MappingProxyType
from typing import Any

import attrs

from msgstore.contract import StoreClosed, events
from msgstore.contract.events import Event
from msgstore.plugins.loader import EVENT_HOOKS, Observer

_observers_log = logging.getLogger("msgstore.observers")

_LOGGERS = {name: logging.getLogger(f"msgstore.{name}") for name in ("collection", "recovery", "segments", "store")}
"""Loggers of the records of events. An interrupt in ``getLogger`` may leave the lock of ``logging`` held."""

MAX_WAITING = 10_000
"""Events that may wait. Later ones are counted and dropped: an observer that hangs must not fill the memory."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time that ``stop`` waits for observers."""
MAX_SPANS = 10_000
"""Damaged spans that are remembered, so that each is published once."""


@attrs.define
class Counters:
    """Numbers since the store was opened. Sizes in bytes, of whole records or files."""

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


def describe(event: Event) -> tuple[str, int, str, dict[str, int]]:
    """Return logger, level and text of the log record of an event, and what it adds to the counters."""
    match event:
        case events.RecoveryFinishedEvent(recovery=found):
            read = f"{len(found['scanned'])} segments read, {len(found['hinted'])} hints"
            text = f"recovered ({found['how']}) in {event.seconds:.3f} s: {read}, {found['entered']} live records"
            return "recovery", INFO, f"{text}, {found['garbage']} dead or copies", {}
        case events.StoreOpenedEvent():
            what = f"mode {event.mode}, index {event.index}, format {event.format}, {event.recovery['how']}"
            return "store", INFO, f"opened, {what}", {}
        case events.StoreClosedEvent():
            return "store", INFO, event.how, {}
        case events.SegmentRolledEvent():
            return "segments", DEBUG, f"{event.file} started", {"rolled_segments": 1}
        case events.SegmentDeletedEvent(size=size):
            return "segments", DEBUG, f"{event.file} deleted, {size} bytes", {"deleted_segments": 1, "collected_bytes": size}
        case events.MessagesDroppedEvent(messages=number):
            text = f"{number} messages of {event.file} dropped: {event.reason}"
            return "collection", INFO, text, {"dropped_messages": number, "dropped_segments": 1}
        case events.CollectionFinishedEvent(size_before=before, size_after=after):
            sizes = f"{before} bytes before, {after} after, {event.moved_bytes} moved"
            freed = before - after if after else 0  # a segment that was deleted has an event with its size
            counts = {} if event.outcome == "none" else {"collections": 1, "collected_bytes": freed}
            return "collection", INFO, f"{event.file} {event.outcome}: {sizes}, {event.seconds:.3f} s", counts
        case events.CorruptionFoundEvent(file=file, offset=offset):  # logged where it is found, too, with its consequences
            return "segments", DEBUG, f"{file} is damaged at {offset}: {event.reason}", {"corruptions": 1}
        case _:
            raise TypeError(f"{event!r} is no event of a store")


class Telemetry:
    """One instance per store, from before its recovery until it is closed. Thread-safe, except ``wrote``. No method raises.

    Observers are called one by one, on the thread ``msgstore-observers PATH``; without observers there is none.
    """

    def __init__(
        self, store: Path, observers: Sequence[Observer] = (), options: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    ) -> None:
        self.store = store
        self._options = options
        """Options of observers by entry point."""
        self.counters = Counters()
        self._counting = threading.Lock()
        """Guards the counters that events change. The state lock guards those of ``wrote``."""
        self.in_callback: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        """Set by the store: entered around each call of an observer."""
        self._spans: set[tuple[str, int | None]] = set()
        self._by_class = {made: [o for o in observers if o.hook == hook] for hook, made in EVENT_HOOKS.items()}
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self._is_finished = not observers
        self._thread = threading.Thread(target=self._run, name=f"msgstore-observers {store}", daemon=True)

    def start(self) -> None:
        """Start the thread that calls the observers, if there are any."""
        if not self._is_finished:
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread is available: the store opens all the same
                if error.__context__ is not None:  # or the thread runs, and ``threading`` has stumbled over an interrupt
                    raise
                self.counters.observer_failures, self._is_finished = 1, True
                _observers_log.warning("%s: no observer is called: %s", self.store, error)

    def note(self, kind: type[Event], **members: Any) -> None:
        """Count, log and publish an event with these members. None follows ``StoreClosedEvent``."""
        event = kind(store=self.store, **members)
        logger, level, text, counts = describe(event)
        self._count(counts)
        _LOGGERS[logger].log(level, "%s: %s", self.store, text)
        if not self._is_finished and self._by_class[kind]:
            if self._waiting.qsize() < MAX_WAITING:
                self._waiting.put(event)
            else:
                self._count({"observer_failures": 1})
        if kind is events.StoreClosedEvent:
            self._finish()

    def damage(self, file: str, offset: int | None, reason: str) -> None:
        """Count and publish a damaged span, once."""
        if (file, offset) not in self._spans and len(self._spans) < MAX_SPANS:
            self._spans.add((file, offset))
            self.note(events.CorruptionFoundEvent, file=file, offset=offset, reason=reason)

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._counting:
            for counter, number in counts.items():
                setattr(self.counters, counter, getattr(self.counters, counter) + number)

    def wrote(self, appended: Iterable[tuple[object, int, int]]) -> None:
        """Count the (segment, records, bytes) that a flush appended. Caller holds the state lock."""
        self.counters.flushes += 1
        for _, messages, size in appended:
            self.counters.written_messages += messages
            self.counters.written_bytes += size

    def stop(self) -> None:
        """Publish nothing more, and wait for the observers, for a limited time. Caller holds no lock."""
        self._finish()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_SECONDS)
            if self._thread.is_alive():
                what = "%s: an observer has not returned within %g s; the store does not wait for it"
                _observers_log.warning(what, self.store, CLOSE_TIMEOUT_SECONDS)

    def _finish(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._waiting.put(None)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            for observer in self._by_class[type(event)]:
                try:
                    with self.in_callback():
                        observer.call(
                            attrs.evolve(event, options=MappingProxyType(self._options.get(observer.provider.entry_point, {})))
                        )
                except BaseException:  # sys.exit() too: the other observers go on
                    self._count({"observer_failures": 1})
                    _observers_log.exception("%s: %s of %s failed", self.store, observer.hook, observer.provider)


def statistics_of(store: Any) -> Callable[[], Mapping[str, int]]:
    """Return a function that gives ``store.stats()`` as numbers; nothing once the store is closed or gone."""
    reference = weakref.ref(store)

    def statistics() -> Mapping[str, int]:
        with contextlib.suppress(StoreClosed):
            if (there := reference()) is not None:
                stats = there.stats()
                own = attrs.asdict(stats, recurse=False)
                return {name: value for name, value in own.items() if isinstance(value, int)} | attrs.asdict(stats.counters)
        return {}

    return statistics
