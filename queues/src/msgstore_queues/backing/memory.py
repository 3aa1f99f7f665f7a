"""Backing queue ``memory``: nothing reaches disk. What is put into it ends with the process, persistent messages too."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgstore_queues.contract import BackingQueueContext, Delivery, Message


class MemoryQueue:
    """Implements :class:`msgstore_queues.contract.BackingQueue`."""

    unwritten = 0

    def __init__(self, context: BackingQueueContext) -> None:
        self._ready = deque[tuple[int, Message]]()
        self._unacked: dict[int, Message] = {}
        self._redelivered: set[int] = set()
        self._next = 0
        self._body_bytes = 0

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    def publish(self, message: Message) -> int:
        position = self._next
        self._next = position + 1
        self._ready.append((position, message))
        self._body_bytes += len(message.body)
        return position

    def publish_delivered(self, message: Message) -> Delivery:
        position = self._next
        self._next = position + 1
        self._unacked[position] = message
        return Delivery(position, message, False)

    def fetch(self) -> Delivery | None:
        if not self._ready:
            return None
        position, message = self._ready.popleft()
        self._unacked[position] = message
        self._body_bytes -= len(message.body)
        return Delivery(position, message, position in self._redelivered)

    def peek(self) -> Message | None:
        return self._ready[0][1] if self._ready else None

    def ack(self, positions: Iterable[int]) -> None:
        for position in positions:
            del self._unacked[position]
            self._redelivered.discard(position)

    def requeue(self, positions: Iterable[int]) -> None:
        for position in sorted(positions, reverse=True):
            message = self._unacked.pop(position)
            self._body_bytes += len(message.body)
            self._redelivered.add(position)
            if not self._ready or position < self._ready[0][0]:
                self._ready.appendleft((position, message))
            else:
                insort(self._ready, (position, message), key=lambda one: one[0])

    def purge(self) -> int:
        count = len(self._ready)
        self._redelivered.difference_update(position for position, _ in self._ready)
        self._ready.clear()
        self._body_bytes = 0
        return count

    def fold(self, call: Callable[[int, Message], object]) -> None:
        for position, message in self._ready:
            if call(position, message):
                return

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        for position, message in sorted(self._unacked.items()):
            if call(position, message):
                return

    def shared(self) -> Iterator[bytes]:
        return iter(())

    def begin_flush(self) -> None:
        pass

    def write(self) -> None:
        pass

    def sync(self) -> Callable[[], None]:
        return lambda: None

    def end_flush(self) -> None:
        pass

    def set_memory_target(self, messages: int | None) -> None:
        pass

    def info(self) -> Mapping[str, object]:
        return {}

    def terminate(self) -> Mapping[str, Any]:
        return {}

    def abandon(self) -> None:
        pass

    def delete_and_terminate(self) -> None:
        pass
