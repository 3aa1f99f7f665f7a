"""Consumer: an iterator over the messages of a queue that holds a limited number of them unacked."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty
from threading import Condition
from types import TracebackType

from msgstore_queues.base_queue import BaseQueue
from msgstore_queues.message import Received
from msgstore_queues.queue_state import deadline_of
from msgstore_queues.stdlib import ShutDown


class Consumer:
    """An iterator over the messages of a queue, from :meth:`Queue.consume`. One thread iterates; any may acknowledge.

    Leaving it as a context manager, or ``close``, gives unacked messages back to their places.
    """

    def __init__(self, queue: BaseQueue, prefetch: int, *, is_exclusive: bool) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}, and must be at least 1")
        self.queue = queue
        self.prefetch = prefetch
        self.is_exclusive = is_exclusive
        self.unacked: dict[int, Received] = {}
        self.has_room = Condition(queue.lock)
        self.is_closed = False
        """True after ``close``."""

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        try:
            return self.receive()
        except ShutDown:
            raise StopIteration from None

    def receive(self, block: bool = True, timeout: float | None = None) -> Received:
        """As :meth:`Queue.receive`. Waits also while ``prefetch`` messages are unacked."""
        queue, deadline = self.queue, deadline_of(block, timeout)
        while True:
            with queue.lock:
                while len(self.unacked) >= self.prefetch and not self.is_closed:
                    if queue._is_shut_down or queue.closed is not None:
                        queue._refuse()
                    if not block:
                        raise Empty
                    queue._wait(self.has_room, deadline, Empty)
            if (received := queue.take(self)) is not None:
                return received
            queue._wait_for_message(block, deadline, self)

    def close(self) -> None:
        """End the consumer. Its unacked messages are ready again, as redelivered."""
        queue = self.queue
        with queue.guard:
            with queue.lock:
                if self.is_closed:
                    return
                self.is_closed = True
                queue._consumers.remove(self)
                queue.note_use()
                for condition in (self.has_room, queue._not_empty):
                    condition.notify_all()
                positions = queue._let_go(list(self.unacked.values())) if queue.closed is None else []
                generation = queue.generation
            if positions:
                queue.return_to_places(positions, generation, is_counted=False)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
