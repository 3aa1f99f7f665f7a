"""Queue: what users call. Consumers, transactions, and the methods of :class:`queue.Queue`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

from msgstore.contract import MsgStoreError
from msgstore_queues.base_queue import BaseQueue
from msgstore_queues.consumer import Consumer
from msgstore_queues.contract import BrowsableQueue, Message, TransactionalQueue
from msgstore_queues.message import Received, encode_item
from msgstore_queues.queue_state import OnConfirm, OnLost, deadline_of


class Queue(BaseQueue):
    """A queue of a vhost, from :meth:`VHost.queue`. Any thread may call it."""

    def consume(self, prefetch: int = 100, *, exclusive: bool = False) -> Consumer:
        """Return a consumer: an iterator over messages, which waits for more. It holds at most ``prefetch`` unacked messages.
        ``exclusive``: the only one. Raises RuntimeError if that is not possible."""
        consumer = Consumer(self, prefetch, is_exclusive=exclusive)
        with self.guard, self.lock:
            is_possible = not self._consumers or not (exclusive or self._consumers[0].is_exclusive)
            if is_possible:
                self._consumers.append(consumer)
        if not is_possible:
            raise RuntimeError(f"{self}: has another consumer, and {'this' if exclusive else 'that'} one is exclusive")
        return consumer

    def transact(
        self,
        messages: Sequence[Message],
        acks: Sequence[Received],
        on_confirm: OnConfirm | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        """Publish messages, from ``make_message``, and acknowledge others: a crash leaves all of it, or nothing. Limits and
        keys do not count. Raises RuntimeError if the backing queue has no transactions, TypeError, ValueError, ShutDown,
        StoreClosed."""
        self._check_own(acks)
        if not all(isinstance(message, Message) for message in messages):
            raise TypeError(f"{self}: each message is one of make_message()")
        if not isinstance(self.backing, TransactionalQueue):
            raise RuntimeError(f"{self}: the backing queue has no transactions")  # noqa: TRY004 - no argument is wrong
        with self.guard:
            with self.lock:
                if self._is_shut_down or self.closed is not None:
                    self._refuse()
                known = self._let_go(acks)
                try:
                    positions = self.backing.transact(messages, known)
                except (OSError, MsgStoreError):
                    self._keep_unacked(known)
                    raise
                for position, message in zip(positions, messages, strict=True):
                    self.keys.note(position, message)
                self.confirm_later(on_confirm, on_lost)
                self.counts["published"] += len(messages)
                self._note_settled(known)
                self._not_empty.notify(len(messages))
            self._call_watchers()
            self.vhost.note_change(self.backing.unwritten)

    def browse(self, first: int = 0, count: int = 100) -> list[Message]:
        """Return up to ``count`` ready messages, in order, from the ``first``-th on, counted from 0. They stay. Those before
        them are read, too, unless the backing queue claims ``browse``."""
        with self.reading, self.lock:
            if self.closed is not None:
                self._refuse()
            self.note_use()
            if isinstance(self.backing, BrowsableQueue):
                return [message for _, message in self.backing.browse(first, count)]
            found: list[Message] = []

            def see(_: int, message: Message) -> bool:
                found.append(message)
                return len(found) >= first + count

            if count > 0:
                self.backing.fold(see)
            return found[first : first + count]

    def stats(self) -> Mapping[str, object]:
        """Return figures: messages, bytes, unacked ones, and those of the backing queue."""
        with self.reading, self.lock:
            self.note_use()
            return {
                "name": self.name, "messages": len(self.backing), "body_bytes": self.backing.body_bytes,
                "unacked": self.backing.unacked, "consumers": len(self._consumers), **self.backing.info(),
            }  # fmt: skip

    # -- the methods of queue.Queue ---------------------------------------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Publish an item, encoded as ``items`` says. Raises as ``publish``."""
        self.publish(encode_item(self.options.items, item), block=block, timeout=timeout)

    def put_nowait(self, item: Any) -> None:
        """As ``put`` without waiting for room."""
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the first message, and return its item. It is unacked until ``task_done`` is called on the same thread."""
        deadline, owner = deadline_of(block, timeout), get_ident()
        while (received := self.take(owner=owner)) is None:
            self._wait_for_message(block, deadline)
        return received.item

    def get_nowait(self) -> Any:
        """As ``get`` without waiting for a message."""
        return self.get(block=False)

    def task_done(self, owner: object = None) -> None:
        """Acknowledge the first message that ``get`` returned on this thread; if there is none, on any. Raises ValueError."""
        owner = get_ident() if owner is None else owner
        with self.lock:
            mine = next((one for one in self._taken if one[0] == owner), None) or next(iter(self._taken), None)
            if mine is None:
                raise ValueError("task_done() called too many times")
            self._taken.remove(mine)
        self.ack(mine[1])

    def join(self) -> None:
        """Wait until no message is ready or unacked. After ``shutdown(immediate=True)`` ready ones do not count."""
        with self.lock:
            while self.unfinished_tasks:
                if self.closed is not None:
                    self._refuse()
                self._joining += 1
                try:
                    self._all_done.wait()
                finally:
                    self._joining -= 1

    @property
    def maxsize(self) -> int:
        """``max_length``; 0: no limit."""
        return self.options.max_length or 0

    def __bool__(self) -> bool:
        return True

    def empty(self) -> bool:
        """Return True if ``get`` would have to wait."""
        return not self.qsize()

    def full(self) -> bool:
        """Return True if a publish would have to wait, or would drop a message."""
        return not self._is_stopped and self._is_over(0)

    @property
    def is_shutdown(self) -> bool:
        """True after ``shutdown``."""
        return self._is_shut_down

    def shutdown(self, immediate: bool = False) -> None:
        """Let ``put`` raise ShutDown, and ``get`` too when the queue is empty; with ``immediate`` at once. The messages stay
        on disk, and the queue is as before in the next run."""
        with self.lock:
            self._is_shut_down = True
            self._is_stopped = self._is_stopped or immediate
            for condition in (self._not_empty, self._not_full, self._all_done):
                condition.notify_all()
            for consumer in self._consumers:
                consumer.has_room.notify_all()
        self._call_watchers()
