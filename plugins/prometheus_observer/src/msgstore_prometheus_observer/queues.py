"""Event hooks for vhosts. msgstore-queues loads this module, if it is installed. The first event imports
``prometheus_client``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgstore_queues import events, hookimpl

if TYPE_CHECKING:
    from msgstore_prometheus_observer.queue_metrics import QueueMetrics

_lock = threading.Lock()
_instances: list[QueueMetrics] = []


def metrics() -> QueueMetrics:
    """Return the metrics of this process, in prometheus_client's default registry. Thread-safe; creates them once."""
    with _lock:
        if not _instances:
            from prometheus_client import REGISTRY

            from msgstore_prometheus_observer.queue_metrics import QueueMetrics

            _instances.append(QueueMetrics(REGISTRY))
        return _instances[0]


def _calls(method: str) -> Callable[[events.VHostEvent], None]:
    """Return a hook that calls the method of the metrics."""

    def hook(event: events.VHostEvent) -> None:
        getattr(metrics(), method)(event)

    return hookimpl(hook)


msgstore_vhost_opened = _calls("vhost_opened")
msgstore_vhost_closed = _calls("vhost_closed")
msgstore_vhost_restarted = _calls("vhost_restarted")
msgstore_vhost_down = _calls("vhost_down")
msgstore_queue_flush_failed = _calls("flush_failed")
msgstore_queue_messages_lost = _calls("messages_lost")
