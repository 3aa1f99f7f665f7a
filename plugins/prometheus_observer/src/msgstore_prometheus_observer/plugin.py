"""Event hooks of the observer. ``prometheus_client`` is imported with the first event.

Each store calls hooks on its own observer thread, so hooks of two stores may run at the same time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgstore import hookimpl
from msgstore.contract import events

if TYPE_CHECKING:
    from msgstore_prometheus_observer.metrics import Metrics

_lock = threading.Lock()
_instances: list[Metrics] = []


def metrics() -> Metrics:
    """Return the metrics of this process, in prometheus_client's default registry. Thread-safe; creates them once."""
    with _lock:
        if not _instances:
            from prometheus_client import REGISTRY

            from msgstore_prometheus_observer.metrics import Metrics

            _instances.append(Metrics(REGISTRY))
        return _instances[0]


@hookimpl
def msgstore_store_opened(event: events.StoreOpenedEvent) -> None:
    metrics().store_opened(event)


@hookimpl
def msgstore_store_closed(event: events.StoreClosedEvent) -> None:
    metrics().store_closed(event)


@hookimpl
def msgstore_segment_rolled(event: events.SegmentRolledEvent) -> None:
    metrics().segment_rolled(event)


@hookimpl
def msgstore_segment_deleted(event: events.SegmentDeletedEvent) -> None:
    metrics().segment_deleted(event)


@hookimpl
def msgstore_recovery_finished(event: events.RecoveryFinishedEvent) -> None:
    metrics().recovery_finished(event)


@hookimpl
def msgstore_corruption_found(event: events.CorruptionFoundEvent) -> None:
    metrics().corruption_found(event)


@hookimpl
def msgstore_collection_finished(event: events.CollectionFinishedEvent) -> None:
    metrics().collection_finished(event)


@hookimpl
def msgstore_messages_dropped(event: events.MessagesDroppedEvent) -> None:
    metrics().messages_dropped(event)
