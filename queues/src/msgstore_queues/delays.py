"""Delayed messages of a queue: held in a queue beside it, ``NAME.delayed``, and published when they are due.

All of them are in memory while the vhost is open, in a heap by due time. On disk the due time is the expiry of the entry. A
message is acknowledged there when its queue has confirmed it: a crash between leaves it in both.
"""

from __future__ import annotations

import time
from functools import partial
from heapq import heappop, heappush

import attrs

from msgstore.contract import MsgStoreError
from msgstore_queues.base_queue import BaseQueue
from msgstore_queues.contract import Message
from msgstore_queues.delivering import RETRY_SECONDS
from msgstore_queues.message import whole_header, with_headers
from msgstore_queues.queue_state import OnConfirm, OnLost

_EXPIRY = "x-msgstore-expiry-us"
"""Header: when the message expires, while its entry has the due time."""


class Delays:
    """The delayed messages of one queue. Any thread may call it."""

    def __init__(self, queue: BaseQueue, holder: BaseQueue) -> None:
        self._queue = queue
        self._holder = holder
        self._heap: list[tuple[int, int, Message]] = []
        with holder.lock:
            self.read()
            holder.holds_for = self

    def read(self) -> None:
        """Read all from the queue that holds them. Caller holds its lock."""
        self._heap.clear()
        while (delivery := self._holder.backing.fetch()) is not None:
            heappush(self._heap, (delivery.message.expiry_us, delivery.position, delivery.message))
            self._holder.keys.note(delivery.position, delivery.message, _own_expiry_us(delivery.message))
        if self._heap:
            self._holder.vhost.wake_at(self._heap[0][0] / 1e6)

    def __len__(self) -> int:
        return len(self._heap)

    def add(
        self,
        message: Message,
        due_us: int,
        on_confirm: OnConfirm | None,
        on_lost: OnLost | None = None,
        *,
        key: str | None = None,
        instead_of: int | None = None,
    ) -> None:
        """Hold a message until a time, in microseconds since the epoch. ``on_lost`` is also called if that fails. ``key``:
        adds nothing if a message of the queue has it. ``instead_of``: position of a message in the queue whose key this one
        takes over."""
        vhost = self._holder.vhost
        if message.expiry_us:
            message = with_headers(message, message.msg_id, {_EXPIRY: message.expiry_us}, expiry_us=due_us)
        else:
            message = attrs.evolve(message, expiry_us=due_us)
        with self._holder.guard:
            try:
                with self._queue.lock:  # before that of the holder: between the look for the key and the addition nothing comes
                    if key is None or not self._queue.is_duplicate(key, message, on_confirm, on_lost):
                        position, generation = self._holder.add_taken(message, on_confirm, on_lost)
                        self._push(due_us, position, message, generation)
                        if instead_of is not None:
                            self._queue.keys.forget([instead_of])
            except Exception as error:
                if on_lost is not None:
                    on_lost(self._holder.as_lost(error))
                raise
            vhost.wake_at(due_us / 1e6)
            vhost.note_change(0)

    def is_duplicate(self, key: str, message: Message, on_confirm: OnConfirm | None, on_lost: OnLost | None) -> bool:
        """As :meth:`BaseQueue.is_duplicate`, among the delayed messages. Caller holds the lock of the queue."""
        with self._holder.lock:
            if is_found := self._holder.keys.has(key, persistent=message.is_persistent):
                self._holder.confirm_later(on_confirm, on_lost)
        return is_found

    def release(self) -> float | None:
        """Publish what is due. Return the time at which the next one is, in seconds since the epoch."""
        while True:
            with self._holder.lock:
                if not self._heap:
                    return None
                if self._heap[0][0] > time.time() * 1e6:
                    return self._heap[0][0] / 1e6
                _, position, message = heappop(self._heap)
                generation = self._holder.generation
            self._publish(position, message, generation)

    def _push(self, due_us: int, position: int, message: Message, generation: int) -> None:
        with self._holder.lock:
            if generation == self._holder.generation:  # otherwise it was read again
                heappush(self._heap, (due_us, position, message))
                self._holder.keys.note(position, message, _own_expiry_us(message))

    def _publish(self, position: int, message: Message, generation: int) -> None:
        copy = attrs.evolve(message, msg_id=self._holder.vhost.next_id(), expiry_us=_own_expiry_us(message))

        def hold_again(_: MsgStoreError) -> None:
            due_us = int((time.time() + RETRY_SECONDS) * 1e6)
            self._push(due_us, position, message, generation)
            self._holder.vhost.wake_at(due_us / 1e6)

        confirmed = partial(self._holder.settle, [position], generation)
        self._queue.add(copy, confirmed, hold_again, instead_of=(self._holder, position))


def _own_expiry_us(message: Message) -> int:
    """Return when a delayed message expires; 0: never."""
    return whole_header(message, _EXPIRY)
