"""Work of a queue by the clock: return messages after a failure, publish delayed ones, and end when nobody uses it."""

from __future__ import annotations

import time
from contextlib import suppress

from msgstore.contract import StoreClosed
from msgstore_queues.base_queue import BaseQueue


def do_what_is_due(queue: BaseQueue) -> list[float]:
    """Return messages to their places that a failure has kept from them, publish delayed ones, and delete the queue if it has
    expired. Return the times at which to look again."""
    times = list[float | None]()
    with suppress(StoreClosed):  # the queue was deleted meanwhile
        queue.return_again()
        if queue.delays is not None:
            times.append(queue.delays.release())
        if queue.options.expires is not None:
            times.append(queue.vhost.delete_unused(queue))
    return [one for one in times if one is not None]


def unused_until(queue: BaseQueue) -> float | None:
    """Return the time at which the queue expires if nobody uses it until then; None: it does not, or has ended."""
    if queue.closed is not None or queue.options.expires is None:
        return None
    return (time.time() if queue.is_in_use else queue.used_at) + queue.options.expires


def is_unused(queue: BaseQueue) -> bool:
    """Return True if nobody has used the queue for its ``expires``."""
    until = unused_until(queue)
    return until is not None and until <= time.time()
