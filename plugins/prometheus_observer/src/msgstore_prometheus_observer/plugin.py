"""What this distribution observes. Light: prometheus_client is imported with the first event.

Hooks are called on the observer thread of each store, so those of two stores may come at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgstore import hookimpl
from msgstore.contract import events

if TYPE_CHECKING:
    from msgstore_prometheus_observer.metrics import Metrics

_making = threading.Lock()
_made: list[Metrics] = []


def metrics() -> Metrics:
    """Those of this process, in prometheus_client's own registry."""
    with _making:
        if not _made:
            from prometheus_client import REGISTRY

            from msgstore_prometheus_observer.metrics import Metrics

            _made.append(Metrics(REGISTRY))
        return _made[0]


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
