"""Metrics of queues: read from the open vhosts at each scrape, but for a few that count events.

Each metric has the labels ``path``, the directory of the vhost, and ``vhost``; those of queues also have ``queue``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from msgstore_queues import events

GAUGES = {
    "ready": ("msgstore_queue_ready_messages", "Messages that wait for a consumer."),
    "unacked": ("msgstore_queue_unacked_messages", "Messages that were taken and are not acknowledged."),
    "bytes": ("msgstore_queue_ready_bytes", "Bytes of the bodies of ready messages."),
}
COUNTERS = {
    "published": ("msgstore_queue_published_messages", "Messages that were published, dead letters included."),
    "acknowledged": ("msgstore_queue_acknowledged_messages", "Messages that were acknowledged."),
    "redelivered": ("msgstore_queue_redelivered_messages", "Deliveries of messages that may have been delivered before."),
    "dead_lettered": ("msgstore_queue_dead_lettered_messages", "Messages that went to the dead-letter queue."),
    "restarts": ("msgstore_queue_restarts", "Times that the queue was read again after a failure, its own or of its vhost."),
}
_LABELS = ["path", "vhost"]


class OpenVHosts(Collector):
    """Prometheus collector that reads the figures of every open vhost at each scrape, on the scraping thread."""

    def __init__(self) -> None:
        self._opened: dict[str, events.VHostOpenedEvent] = {}
        self._lock = threading.Lock()

    def add(self, event: events.VHostOpenedEvent) -> None:
        """Add the vhost of this event."""
        with self._lock:
            self._opened[str(event.directory)] = event

    def remove(self, event: events.VHostClosedEvent) -> None:
        """Remove a vhost that is closed."""
        with self._lock:
            self._opened.pop(str(event.directory), None)

    def describe(self) -> list[Metric]:
        """Return no metrics: otherwise the registry would call ``collect`` at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            opened = list(self._opened.values())
        found = [
            ([str(event.directory), event.vhost, queue], figures)
            for event in opened
            for queue, figures in event.statistics().items()
        ]
        for name, (metric, text) in GAUGES.items():
            gauge = GaugeMetricFamily(metric, text, labels=[*_LABELS, "queue"])
            for labels, figures in found:
                gauge.add_metric(labels, figures[name])
            yield gauge
        for name, (metric, text) in COUNTERS.items():
            counter = CounterMetricFamily(metric, text, labels=[*_LABELS, "queue"])
            for labels, figures in found:
                counter.add_metric(labels, figures[name])
            yield counter


class QueueMetrics:
    """All metrics of queues of one registry. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, [*_LABELS, *labels], registry=registry)

        self._restarts = counter("msgstore_vhost_restarts", "Times that the vhost was opened again after a failure.")
        self._downs = counter("msgstore_vhost_downs", "Times that the vhost went down.")
        self._flush_failures = counter("msgstore_vhost_flush_failures", "Flushes that failed.")
        self._lost = counter("msgstore_queue_lost_messages", "Messages that could not be read, and were skipped.", "queue")
        self._open = OpenVHosts()
        registry.register(self._open)

    def vhost_opened(self, event: events.VHostOpenedEvent) -> None:
        for metric in (self._restarts, self._downs, self._flush_failures):
            metric.labels(str(event.directory), event.vhost)  # starts at 0
        self._open.add(event)

    def vhost_closed(self, event: events.VHostClosedEvent) -> None:
        self._open.remove(event)

    def vhost_restarted(self, event: events.VHostRestartedEvent) -> None:
        self._restarts.labels(str(event.directory), event.vhost).inc()

    def vhost_down(self, event: events.VHostDownEvent) -> None:
        self._downs.labels(str(event.directory), event.vhost).inc()

    def flush_failed(self, event: events.FlushFailedEvent) -> None:
        self._flush_failures.labels(str(event.directory), event.vhost).inc()

    def messages_lost(self, event: events.MessagesLostEvent) -> None:
        self._lost.labels(str(event.directory), event.vhost, event.queue).inc(event.messages)
