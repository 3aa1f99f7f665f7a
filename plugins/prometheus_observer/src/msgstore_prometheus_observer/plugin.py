"""Event hooks of the observer. ``prometheus_client`` is imported with the first event.

Each store calls hooks on its own observer thread, so hooks of two stores may run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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


def _calls(method: str) -> Callable[[events.Event], None]:
    """Return a hook that calls the method of the metrics."""

    def hook(event: events.Event) -> None:
        getattr(metrics(), method)(event)

    return hookimpl(hook)


msgstore_store_opened = _calls("store_opened")
msgstore_store_closed = _calls("store_closed")
msgstore_segment_rolled = _calls("segment_rolled")
msgstore_segment_deleted = _calls("segment_deleted")
msgstore_recovery_finished = _calls("recovery_finished")
msgstore_corruption_found = _calls("corruption_found")
msgstore_collection_finished = _calls("collection_finished")
msgstore_messages_dropped = _calls("messages_dropped")
