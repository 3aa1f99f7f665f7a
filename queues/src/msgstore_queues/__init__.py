"""msgstore_queues: durable queues on top of msgstore's stores.

::

    from msgstore_queues import open_vhost

    with open_vhost("data") as vhost:
        jobs = vhost.queue("jobs")
        jobs.put(b"resize 17")
        for message in jobs.consume():
            work(message.body)
            message.ack()

Each public name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # ``as``: type checkers take a name that is imported so for a public one
    from msgstore_queues.config import load_config as load_config
    from msgstore_queues.consumer import Consumer as Consumer
    from msgstore_queues.hooks import hookimpl as hookimpl
    from msgstore_queues.message import Received as Received
    from msgstore_queues.queue import Queue as Queue
    from msgstore_queues.vhost import VHost as VHost
    from msgstore_queues.vhost import open_vhost as open_vhost

__version__ = "0.1.0"

_MODULE_OF = {
    "Consumer": "msgstore_queues.consumer",
    "Queue": "msgstore_queues.queue",
    "Received": "msgstore_queues.message",
    "VHost": "msgstore_queues.vhost",
    "hookimpl": "msgstore_queues.hooks",
    "load_config": "msgstore_queues.config",
    "open_vhost": "msgstore_queues.vhost",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'msgstore_queues' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value
