"""Metrics of stores: some count events, others read the statistics of the open stores at each scrape.

Each metric has the label ``store``, the store's directory. Names and units follow Prometheus's conventions: base units,
``_total``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from msgstore.contract import events

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300)

GAUGES = {
    "messages": ("msgstore_messages", "Live messages, buffered ones included."),
    "pending": ("msgstore_pending_messages", "Messages that are not on disk yet."),
    "segments": ("msgstore_segments", "Segment files."),
    "bytes_on_disk": ("msgstore_disk_bytes", "Bytes of all segments."),
    "live_bytes": ("msgstore_live_bytes", "Bytes of live records."),
    "garbage_bytes": ("msgstore_garbage_bytes", "Bytes that a collection can free, at most."),
    "quarantined": ("msgstore_quarantined_segments", "Segments in which damage was found."),
}
COUNTERS = {
    "written_messages": ("msgstore_written_messages", "Messages written to disk."),
    "written_bytes": ("msgstore_written_bytes", "Bytes of records written to disk."),
    "removed_messages": ("msgstore_removed_messages", "Messages on disk whose last reference was removed."),
    "flushes": ("msgstore_flushes", "Flushes that had changes to write."),
    "callback_failures": ("msgstore_callback_failures", "Exceptions raised by on_confirm."),
    "observer_failures": ("msgstore_observer_failures", "Exceptions raised by observers, and events that were not delivered."),
}


class OpenStores(Collector):
    """Prometheus collector that reads the statistics of every open store at each scrape, on the scraping thread."""

    def __init__(self) -> None:
        self._opened: list[events.StoreOpenedEvent] = []
        self._lock = threading.Lock()

    def add(self, event: events.StoreOpenedEvent) -> None:
        """Add the store of this event."""
        with self._lock:
            self._opened.append(event)

    def remove_closed(self) -> None:
        """Remove all stores that are closed: they have no statistics."""
        with self._lock:
            self._opened = [event for event in self._opened if event.statistics()]

    def describe(self) -> list[Metric]:
        """Return no metrics: otherwise the registry would call ``collect`` at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        found = self._statistics()
        for name, (metric, text) in GAUGES.items():
            gauge = GaugeMetricFamily(metric, text, labels=["store"])
            for store, numbers in found.items():
                gauge.add_metric([store], numbers[name])
            yield gauge
        for name, (metric, text) in COUNTERS.items():
            counter = CounterMetricFamily(metric, text, labels=["store"])
            for store, numbers in found.items():
                counter.add_metric([store], numbers[name])
            yield counter

    def _statistics(self) -> dict[str, dict[str, int]]:
        """Return the statistics by store. If this process has a directory open several times, the writer's are used."""
        with self._lock:
            opened = sorted(self._opened, key=lambda event: event.mode == "rw")
        found = ((str(event.store), dict(event.statistics())) for event in opened)
        return {store: numbers for store, numbers in found if numbers}


class Metrics:
    """All metrics of one registry. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["store", *labels], registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, ["store", *labels], registry=registry, buckets=SECONDS)

        self._openings = counter("msgstore_openings", "Openings of the store, by kind of recovery.", "how")
        self._recovery = histogram("msgstore_recovery_seconds", "Time of recoveries that had to read segments.")
        self._rolled = counter("msgstore_segments_rolled", "Segments that were started.")
        self._deleted = counter("msgstore_segments_deleted", "Segments that were unlinked.")
        self._deleted_bytes = counter("msgstore_deleted_bytes", "Bytes of segments that were unlinked.")
        self._corruptions = counter("msgstore_corruptions", "Damaged spans that were found.")
        self._collection = histogram("msgstore_collection_seconds", "Time of one segment's collection.", "action")
        self._skipped = counter("msgstore_collections_skipped", "Segments that the collector left unchanged.", "action")
        self._moved = counter("msgstore_collection_moved_bytes", "Bytes of records that collections moved.", "action")
        self._written = counter("msgstore_collection_written_bytes", "Bytes that collections wrote.", "action")
        self._freed = counter("msgstore_collection_freed_bytes", "Bytes that collections freed.", "action")
        self._dropped = counter("msgstore_dropped_messages", "Live messages that retention deleted.")
        self._dropped_bytes = counter("msgstore_dropped_bytes", "Bytes of live records that retention deleted.")
        self._open = OpenStores()
        registry.register(self._open)

    def store_opened(self, event: events.StoreOpenedEvent) -> None:
        store = str(event.store)
        self._openings.labels(store, event.recovery["how"]).inc()
        for metric in (self._rolled, self._deleted, self._deleted_bytes, self._corruptions, self._dropped, self._dropped_bytes):
            metric.labels(store)  # starts at 0: a rate cannot include the first increment of a series that begins with it
        self._open.add(event)

    def store_closed(self, event: events.StoreClosedEvent) -> None:
        self._open.remove_closed()

    def segment_rolled(self, event: events.SegmentRolledEvent) -> None:
        self._rolled.labels(str(event.store)).inc()

    def segment_deleted(self, event: events.SegmentDeletedEvent) -> None:
        self._deleted.labels(str(event.store)).inc()
        self._deleted_bytes.labels(str(event.store)).inc(event.size)

    def recovery_finished(self, event: events.RecoveryFinishedEvent) -> None:
        self._recovery.labels(str(event.store)).observe(event.seconds)

    def corruption_found(self, event: events.CorruptionFoundEvent) -> None:
        self._corruptions.labels(str(event.store)).inc()

    def collection_finished(self, event: events.CollectionFinishedEvent) -> None:
        labels = str(event.store), event.outcome
        self._collection.labels(*labels).observe(event.seconds)
        self._moved.labels(*labels).inc(event.moved_bytes)
        self._written.labels(*labels).inc(event.written)
        if event.skipped is None:
            self._freed.labels(*labels).inc(max(0, event.size_before - event.size_after))
            self._skipped.labels(*labels)
        else:
            self._skipped.labels(*labels).inc()

    def messages_dropped(self, event: events.MessagesDroppedEvent) -> None:
        self._dropped.labels(str(event.store)).inc(event.messages)
        self._dropped_bytes.labels(str(event.store)).inc(event.bytes)
