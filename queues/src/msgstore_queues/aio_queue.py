"""Queues and consumers of the asyncio API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Full
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol

from msgstore_queues import queue
from msgstore_queues.consumer import Consumer as BlockingConsumer
from msgstore_queues.contract import Message
from msgstore_queues.message import Received, encode_item
from msgstore_queues.stdlib import QueueShutDown, ShutDown
from msgstore_queues.waiters import Waiters, call_in_loop, in_thread, limit, set_done, set_failed


class Flushed(Protocol):
    """The vhost, as its queues use it: :class:`msgstore_queues.aio.VHost`."""

    async def flush(self) -> None: ...


class Queue:
    """A queue, from :meth:`VHost.queue`, for the tasks of one event loop. Other threads may use ``blocking`` meanwhile."""

    def __init__(self, vhost: Flushed, blocking: queue.Queue) -> None:
        self._vhost = vhost
        self.blocking = blocking
        """The queue of the blocking API, for other threads."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """The thread of the loop."""
        self._is_wake_scheduled = False
        self._getters, self._putters, self._joiners = Waiters(), Waiters(), Waiters()
        self._groups = [self._getters, self._putters, self._joiners]
        self._unconfirmed: set[asyncio.Future[None]] = set()
        blocking.watch(self._note_change)

    @property
    def name(self) -> str:
        return self.blocking.name

    # -- publishing -------------------------------------------------------------------------------------------------------

    async def publish(
        self, body: bytes, *, block: bool = True, timeout: float | None = None, confirm: bool = False, **message: Any
    ) -> None:
        """Add a message at the end. ``message``: ``headers``, ``properties``, ``persistent``, ``ttl``, ``delay`` and ``key`` of
        :meth:`msgstore_queues.Queue.publish`. ``confirm``: return when the message is confirmed; otherwise when it is accepted.
        A publish that is cancelled while it waits for room has added nothing; later, it has. Raises QueueFull, QueueShutDown,
        TypeError (body, key), PropertiesError, StoreClosed, and StoreIOError if each call flushes."""
        confirmed = self._expect_confirm() if confirm else None
        try:
            if not self._publish(body, confirmed, **message):
                await self._publish_later(body, confirmed, block, timeout, message)
            await self._confirmed(confirmed)
        finally:
            self._expect_no_more(confirmed)

    def _publish(self, body: bytes, confirmed: asyncio.Future[None] | None = None, **message: Any) -> bool:
        """Publish, unless there is no room: then return False."""
        self._bind()
        try:
            self.blocking.publish(body, block=False, **_callbacks(confirmed), **message)
        except Full:
            return False
        except ShutDown:
            raise QueueShutDown from None
        return True

    async def _publish_later(
        self,
        body: bytes,
        confirmed: asyncio.Future[None] | None,
        block: bool,
        timeout: float | None,
        message: Mapping[str, Any],
    ) -> None:
        """Publish as soon as there is room."""
        if not block or self.blocking.options.overflow != "block":
            raise asyncio.QueueFull
        try:
            async with limit(timeout):
                is_published = False
                while not is_published:
                    await self._wait(self._putters, lambda: self._ends() or self.blocking.has_room(len(body)))
                    try:
                        is_published = self._publish(body, confirmed, **message)
                    finally:
                        self._putters.wake()
        except TimeoutError:
            raise asyncio.QueueFull from None

    def _expect_confirm(self) -> asyncio.Future[None]:
        """Return a future that is done by a confirm, or fails when the queue ends."""
        future = asyncio.get_running_loop().create_future()
        self._unconfirmed.add(future)
        return future

    async def _confirmed(self, confirmed: asyncio.Future[None] | None) -> None:
        """Wait for a confirm if one is expected, or for a flush if one is due."""
        if confirmed is not None:
            await confirmed
        elif self.blocking.vhost.is_flush_due(self.blocking.backing.unwritten):
            await self._vhost.flush()

    def _expect_no_more(self, confirmed: asyncio.Future[None] | None) -> None:
        if confirmed is not None:
            self._unconfirmed.discard(confirmed)
            confirmed.cancel()

    async def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Publish an item, encoded as ``items`` says. Raises as ``publish``."""
        await self.publish(encode_item(self.blocking.options.items, item), block=block, timeout=timeout)

    def put_nowait(self, item: Any) -> None:
        """As ``put``, without waiting for room. Never waits for a flush."""
        if not self._publish(encode_item(self.blocking.options.items, item)):
            raise asyncio.QueueFull

    def make_message(self, body: bytes, **message: Any) -> Message:
        """Return a message for ``transact``. See :meth:`msgstore_queues.Queue.make_message`."""
        return self.blocking.make_message(body, **message)

    async def transact(self, messages: Sequence[Message], acks: Sequence[Received], *, confirm: bool = False) -> None:
        """As :meth:`msgstore_queues.Queue.transact`. ``confirm``: return when all of it is confirmed."""
        confirmed = self._expect_confirm() if confirm else None
        self._bind()
        try:
            self.blocking.transact(messages, acks, **_callbacks(confirmed))
            await self._confirmed(confirmed)
        except ShutDown:
            raise QueueShutDown from None
        finally:
            self._expect_no_more(confirmed)

    # -- taking -----------------------------------------------------------------------------------------------------------

    async def receive(self, block: bool = True, timeout: float | None = None) -> Received:
        """Take the first message. It is unacked until ``ack`` or ``nack``. A call that is cancelled has taken none. Raises
        QueueEmpty, QueueShutDown, StoreClosed."""
        return await self._take_later(self._take, self._getters, self.is_message_due, block, timeout)

    async def _take_later(
        self,
        take: Callable[[], Received | None],
        group: Waiters,
        is_possible: Callable[[], bool],
        block: bool,
        timeout: float | None,
    ) -> Received:
        """Return what ``take`` takes, as soon as it takes something. ``group``: those who wait for ``is_possible``."""
        received = take()
        if received is not None:
            return received
        if not block:
            raise asyncio.QueueEmpty
        try:
            async with limit(timeout):
                while received is None:
                    await self._wait(group, is_possible)
                    try:
                        received = take()
                    finally:
                        group.wake()
        except TimeoutError:
            raise asyncio.QueueEmpty from None
        return received

    def _take(self, owner: object = None) -> Received | None:
        self._bind()
        try:
            received = self.blocking.take(owner=owner)
        except ShutDown:
            raise QueueShutDown from None
        if received is None and self.blocking.is_shutdown and self.blocking.empty():
            raise QueueShutDown
        return received

    def is_message_due(self) -> bool:
        """Return True if there is a message, or none will come any more."""
        return self._ends() or not self.blocking.empty()

    async def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the first message, and return its item. It is unacked until ``task_done`` is called in the same task."""
        take = partial(self._take, _owner())
        return (await self._take_later(take, self._getters, self.is_message_due, block, timeout)).item

    def get_nowait(self) -> Any:
        """As ``get``, without waiting for a message."""
        received = self._take(_owner())
        if received is None:
            raise asyncio.QueueEmpty
        return received.item

    def consume(self, prefetch: int = 100, *, exclusive: bool = False) -> Consumer:
        """Return a consumer, an asynchronous iterator. See :meth:`msgstore_queues.Queue.consume`."""
        return Consumer(self, self.blocking.consume(prefetch, exclusive=exclusive))

    # -- acknowledging ----------------------------------------------------------------------------------------------------

    def ack(self, *messages: Received) -> None:
        """Say that messages are done with. ``flush`` waits until that is on disk."""
        self._bind()
        self.blocking.ack(*messages)

    def nack(self, *messages: Received, requeue: bool = True, delay: float | None = None) -> None:
        """Give messages back. See :meth:`msgstore_queues.Received.nack`."""
        self._bind()
        self.blocking.nack(*messages, requeue=requeue, delay=delay)

    def task_done(self) -> None:
        """Acknowledge the first message that ``get`` returned in this task; if there is none, in any. Raises ValueError."""
        self._bind()
        self.blocking.task_done(_owner())

    async def join(self) -> None:
        """Wait until no message is ready or unacked. After ``shutdown(immediate=True)`` ready ones do not count."""
        while self.blocking.unfinished_tasks:
            if self.blocking.closed is not None:
                raise self.blocking.closed
            await self._wait(self._joiners, lambda: self.blocking.closed is not None or not self.blocking.unfinished_tasks)
            self._joiners.wake()

    # -- questions, flushes and the end -----------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Return the number of ready messages; 0 after ``shutdown(immediate=True)``."""
        return self.blocking.qsize()

    __len__ = qsize

    def __bool__(self) -> bool:
        return True

    @property
    def maxsize(self) -> int:
        """``max_length``; 0: no limit."""
        return self.blocking.maxsize

    @property
    def unacked(self) -> int:
        """The number of unacked messages."""
        return self.blocking.unacked

    def empty(self) -> bool:
        """Return True if ``get`` would have to wait."""
        return self.blocking.empty()

    def full(self) -> bool:
        """Return True if a publish would have to wait, or would drop a message."""
        return self.blocking.full()

    def stats(self) -> Mapping[str, object]:
        """Return figures. See :meth:`msgstore_queues.Queue.stats`."""
        return self.blocking.stats()

    async def browse(self, first: int = 0, count: int = 100) -> list[Message]:
        """Return ready messages, which stay. See :meth:`msgstore_queues.Queue.browse`."""
        return await in_thread(lambda: self.blocking.browse(first, count))

    async def flush(self) -> None:
        """Return when everything that was published before the call is confirmed. Raises StoreIOError, StoreClosed."""
        await self._vhost.flush()

    async def purge(self) -> int:
        """Drop all ready messages. Return their number."""
        return await in_thread(self.blocking.purge)

    def shutdown(self, immediate: bool = False) -> None:
        """Let ``put`` raise QueueShutDown, and ``get`` too when the queue is empty; with ``immediate`` at once. The messages
        stay on disk, and the queue is as before in the next run."""
        self.blocking.shutdown(immediate)

    def __repr__(self) -> str:
        return f"<msgstore_queues.aio.Queue {self.name!r}>"

    # -- waiting ----------------------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        """Note the loop of this thread, if one runs, before something is changed or awaited."""
        thread = get_ident()
        if thread != self._thread or self._loop is None or self._loop.is_closed():
            with suppress(RuntimeError):  # no loop runs: nobody can wait either
                self._loop = asyncio.get_running_loop()
                self._thread = thread
                self._is_wake_scheduled = False
                self.blocking.vhost.background_only.add(thread)

    async def _wait(self, group: Waiters, is_possible: Callable[[], bool]) -> None:
        self._bind()
        self.blocking.waiting_tasks += 1
        try:
            await group.wait(is_possible)
        finally:
            self.blocking.waiting_tasks -= 1
            self.blocking.note_use()

    def _ends(self) -> bool:
        return self.blocking.is_shutdown or self.blocking.closed is not None

    def _note_change(self) -> None:
        """Called by the queue after each change, on any thread."""
        if get_ident() == self._thread:
            self._wake()
        elif self._loop is not None and not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            call_in_loop(self._loop, self._wake)

    def _wake(self) -> None:
        self._is_wake_scheduled = False  # before looking: a change that comes now schedules another call
        for group in self._groups:
            group.wake()
        if self.blocking.closed is not None:
            for future in self._unconfirmed:
                set_failed(future, self.blocking.closed)


class Consumer:
    """An asynchronous iterator over the messages of a queue, from :meth:`Queue.consume`.

    Leaving it as a context manager, or ``close``, gives unacked messages back to their places.
    """

    def __init__(self, queue: Queue, blocking: BlockingConsumer) -> None:
        self._queue = queue
        self._consumer = blocking
        self._takers = Waiters()
        queue._groups.append(self._takers)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Received:
        try:
            return await self.receive()
        except QueueShutDown:
            raise StopAsyncIteration from None

    async def receive(self, block: bool = True, timeout: float | None = None) -> Received:
        """As :meth:`Queue.receive`. Waits also while ``prefetch`` messages are unacked."""
        return await self._queue._take_later(self._take, self._takers, self._is_possible, block, timeout)

    def _take(self) -> Received | None:
        """Take a message, if there is one, and the prefetch allows it."""
        self._queue._bind()
        jobs, consumer = self._queue.blocking, self._consumer
        try:
            received = None if self._is_full() else jobs.take(consumer)
        except ShutDown:
            raise QueueShutDown from None
        if received is None and jobs.closed is not None:
            raise jobs.closed
        if received is None and jobs.is_shutdown and (jobs.empty() or self._is_full()):
            raise QueueShutDown
        return received

    def _is_full(self) -> bool:
        return len(self._consumer.unacked) >= self._consumer.prefetch and not self._consumer.is_closed

    def _is_possible(self) -> bool:
        if self._consumer.is_closed or self._queue._ends():
            return True
        return not self._is_full() and not self._queue.blocking.empty()

    async def close(self) -> None:
        """End the consumer. Its unacked messages are ready again, as redelivered."""
        self._consumer.close()
        self._takers.wake()
        if not len(self._takers) and self._takers in self._queue._groups:
            self._queue._groups.remove(self._takers)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _callbacks(confirmed: asyncio.Future[None] | None) -> dict[str, Any]:
    """Return the arguments of a publish that end a future."""
    if confirmed is None:
        return {}
    in_loop = partial(call_in_loop, confirmed.get_loop())
    return {"on_confirm": partial(in_loop, set_done, confirmed), "on_lost": partial(in_loop, set_failed, confirmed)}


def _owner() -> object:
    """Return what calls ``get`` or ``task_done``: the task, or the thread where no loop runs."""
    try:
        return asyncio.current_task() or get_ident()
    except RuntimeError:
        return get_ident()
