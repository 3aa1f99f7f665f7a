"""Backing queue ``priority``: a backing queue for each priority. The highest one that has messages is delivered first.

The priority of a message is its property ``priority`` of AMQP 0-9-1; without one it is 0, and what is above the highest has the
highest. Each priority has a directory beside that of the queue, as RabbitMQ has them.

A position is that of the backing queue below, times 256, plus the priority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from msgstore_queues.contract import BackingQueue, BackingQueueContext, Delivery, Message
from rabbitmq_files.names import queue_directory, sub_queue
from rabbitmq_files.properties import PropertiesError, read_properties

MAX_LEVELS = 256
_HAS_PRIORITY = 0x08
"""Bit in the first byte of properties."""


class PriorityQueue:
    """Implements :class:`msgstore_queues.contract.BackingQueue`."""

    def __init__(self, context: BackingQueueContext) -> None:
        self._files = context.files
        self._levels: int = context.options.levels
        self._directories: dict[int, Path] = {}
        self._queues: dict[int, BackingQueue] = {}
        """Backing queues by priority, the highest first. Priorities that are not used any more may have messages."""
        try:
            self._open(context)
        except BaseException:
            self.abandon()
            raise

    def _open(self, context: BackingQueueContext) -> None:
        terms = (context.terms or {}).get("levels", {})
        for level in reversed(range(MAX_LEVELS)):
            name = sub_queue(context.name, level)
            path = context.directory.with_name(queue_directory(context.vhost, name))
            if level < self._levels or path.exists():
                self._directories[level] = path
                self._queues[level] = context.open_other(context.options.over, path, name, terms.get(str(level)))

    def _level_of(self, message: Message) -> int:
        if not message.raw_properties[0] & _HAS_PRIORITY:
            return 0
        try:
            priority: int = read_properties(message.raw_properties)[0].get("priority", 0)
        except PropertiesError:
            return 0
        return min(priority, self._levels - 1)

    # -- questions --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def unacked(self) -> int:
        return sum(queue.unacked for queue in self._queues.values())

    @property
    def body_bytes(self) -> int:
        return sum(queue.body_bytes for queue in self._queues.values())

    @property
    def unwritten(self) -> int:
        return sum(queue.unwritten for queue in self._queues.values())

    def info(self) -> Mapping[str, object]:
        return {"levels": {level: len(queue) for level, queue in self._queues.items()}}

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> int:
        level = self._level_of(message)
        return self._queues[level].publish(message) * MAX_LEVELS + level

    def publish_delivered(self, message: Message) -> Delivery:
        level = self._level_of(message)
        return _moved(self._queues[level].publish_delivered(message), level)

    def fetch(self) -> Delivery | None:
        for level, queue in self._queues.items():
            if len(queue) and (delivery := queue.fetch()) is not None:
                return _moved(delivery, level)
        return None

    def peek(self) -> Message | None:
        for queue in self._queues.values():
            if len(queue) and (message := queue.peek()) is not None:
                return message
        return None

    def ack(self, positions: Iterable[int]) -> None:
        for level, below in _by_level(positions).items():
            self._queues[level].ack(below)

    def requeue(self, positions: Iterable[int]) -> None:
        for level, below in _by_level(positions).items():
            self._queues[level].requeue(below)

    def purge(self) -> int:
        return sum(queue.purge() for queue in self._queues.values())

    def fold(self, call: Callable[[int, Message], object]) -> None:
        self._fold(lambda queue, call_below: queue.fold(call_below), call)

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        self._fold(lambda queue, call_below: queue.fold_acks(call_below), call)

    def _fold(self, fold: Callable[[BackingQueue, _Call], object], call: _Call) -> None:
        is_over = False
        for level, queue in self._queues.items():

            def call_below(position: int, message: Message, level: int = level) -> object:
                nonlocal is_over
                is_over = bool(call(position * MAX_LEVELS + level, message))
                return is_over

            fold(queue, call_below)
            if is_over:
                return

    def set_memory_target(self, messages: int | None) -> None:
        """Each priority gets the same part."""
        for queue in self._queues.values():
            queue.set_memory_target(None if messages is None else messages // len(self._queues))

    # -- flushes and the end ----------------------------------------------------------------------------------------------

    def shared(self) -> Iterator[bytes]:
        return chain.from_iterable(queue.shared() for queue in self._queues.values())

    def begin_flush(self) -> None:
        for queue in self._queues.values():
            queue.begin_flush()

    def write(self) -> None:
        for queue in self._queues.values():
            queue.write()

    def sync(self) -> Callable[[], None]:
        """Each function that a queue below returned is called, also after another one failed: no later flush repeats it."""
        with ExitStack() as syncs:
            for queue in self._queues.values():
                syncs.callback(queue.sync())
            return syncs.pop_all().close

    def end_flush(self) -> None:
        for queue in self._queues.values():
            queue.end_flush()

    def terminate(self) -> Mapping[str, Any]:
        return {"levels": {str(level): queue.terminate() for level, queue in self._queues.items()}}

    def abandon(self) -> None:
        for queue in self._queues.values():
            queue.abandon()

    def delete_and_terminate(self) -> None:
        for level, queue in self._queues.items():
            queue.delete_and_terminate()
            self._files.remove_tree(self._directories[level])


_Call = Callable[[int, Message], object]


def _moved(delivery: Delivery, level: int) -> Delivery:
    return delivery._replace(position=delivery.position * MAX_LEVELS + level)


def _by_level(positions: Iterable[int]) -> dict[int, list[int]]:
    """Return positions of the backing queues below, by priority."""
    found = defaultdict[int, list[int]](list)
    for position in positions:
        below, level = divmod(position, MAX_LEVELS)
        found[level].append(below)
    return found
