"""The asyncio API: vhosts, queues and consumers with the names of the blocking one.

::

    from msgstore_queues.aio import open_vhost

    async with open_vhost("data") as vhost:
        jobs = await vhost.queue("jobs")
        await jobs.publish(b"resize 17", confirm=True)
        async for message in jobs.consume():
            await work(message.body)
            message.ack()

Calls that wait are coroutines: for a message, for room, for a confirm, or for the disk. Opening, closing and flushes run on
other threads. Publishing and taking a message run on the thread of the event loop: they read the disk for a message that is
not in memory, and wait while a flush passes the messages of the queue to the operating system. Acknowledgements return at once,
and the thread of the vhost flushes them. The errors are those of asyncio: QueueEmpty, QueueFull, QueueShutDown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any

from msgstore_queues import config, vhost
from msgstore_queues.aio_queue import Consumer, Queue
from msgstore_queues.errors import VHostDown
from msgstore_queues.stdlib import QueueShutDown
from msgstore_queues.waiters import in_thread

__all__ = ["Config", "Consumer", "Opening", "Queue", "QueueShutDown", "VHost", "load_config", "open_vhost"]


def open_vhost(path: str | Path, name: str = "/", **options: Any) -> Opening:
    """Open a vhost as :func:`msgstore_queues.open_vhost` does: ``async with open_vhost(...) as vhost``, which closes it at the
    end, or ``vhost = await open_vhost(...)``."""
    return Opening(lambda: vhost.open_vhost(path, name, **options))


def load_config(path: str | Path) -> Config:
    """Read a configuration file, as :func:`msgstore_queues.load_config` does."""
    return Config(config.load_config(path))


class Config:
    """The vhosts of a configuration file."""

    def __init__(self, blocking: config.Config) -> None:
        self.blocking = blocking
        """The configuration of the blocking API."""

    def open(self, name: str, *, progress: config.Progress | None = None) -> Opening:
        """Open the vhost of a table ``[vhosts.NAME]``, as :func:`open_vhost`. ``progress``: called on another thread. See
        :meth:`msgstore_queues.Config.open`."""
        return Opening(lambda: self.blocking.open(name, progress=progress))


class Opening:
    """A vhost to come. Nothing happens before it is awaited or entered."""

    def __init__(self, blocking: Callable[[], vhost.VHost]) -> None:
        self._blocking = blocking
        self._vhost: VHost | None = None

    def __await__(self) -> Generator[Any, None, VHost]:
        return self._open().__await__()

    async def _open(self) -> VHost:
        opened: list[vhost.VHost] = []
        try:
            await in_thread(lambda: opened.append(self._blocking()))
        except BaseException:
            for one in opened:  # the call was cancelled, and has opened the vhost nevertheless
                await in_thread(one.close)
            raise
        return VHost(opened[0])

    async def __aenter__(self) -> VHost:
        self._vhost = await self._open()
        return self._vhost

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._vhost is not None
        await self._vhost.__aexit__(kind, error, trace)


class VHost:
    """A vhost, for the tasks of one event loop. Leaving it as a context manager closes it."""

    def __init__(self, blocking: vhost.VHost) -> None:
        self.blocking = blocking
        """The vhost of the blocking API, for other threads."""
        self._queues: dict[str, Queue] = {}
        self._flush_turn = asyncio.Lock()
        self._next_flush: asyncio.Task[None] | None = None
        """A flush that has not begun: it serves all who come until then."""

    @property
    def name(self) -> str:
        return self.blocking.name

    async def queue(self, name: str, /, **options: Any) -> Queue:
        """Return a queue. See :meth:`msgstore_queues.VHost.queue`."""
        found = await in_thread(lambda: self.blocking.queue(name, **options))
        if name not in self._queues or self._queues[name].blocking is not found:
            self._queues[name] = Queue(self, found)
        return self._queues[name]

    def queues(self) -> list[str]:
        """Return the names of all queues, in order."""
        return self.blocking.queues()

    async def publish(self, body: bytes, to: Sequence[str], **message: Any) -> None:
        """Add one message to several queues, as :meth:`msgstore_queues.VHost.publish`. ``flush`` waits for its confirm."""
        self.blocking.background_only.add(get_ident())
        self.blocking.publish(body, to, **message)
        if self.blocking.is_flush_due(0):
            await self.flush()

    async def delete(self, name: str) -> None:
        """Delete a queue with all its messages. Raises ConfigError if there is none."""
        await in_thread(lambda: self.blocking.delete(name))

    async def flush(self) -> None:
        """As :meth:`msgstore_queues.VHost.flush`. One flush serves all tasks that wait for it."""
        while True:
            if self._next_flush is None or self._next_flush.done():
                self._next_flush = asyncio.create_task(self._flush())
            flush = self._next_flush
            try:
                return await asyncio.shield(flush)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not flush.cancelled() or (task is not None and task.cancelling()):
                    raise
                # Somebody has cancelled the flush, and not this call: it goes on with another one.

    async def _flush(self) -> None:
        async with self._flush_turn:
            self._next_flush = None
            await asyncio.to_thread(self.blocking.flush)

    @property
    def is_alive(self) -> bool:
        """False while the vhost is down, and after its end."""
        return self.blocking.is_alive

    async def start(self) -> None:
        """Open a vhost that is down. See :meth:`msgstore_queues.VHost.start`."""
        await in_thread(self.blocking.start)

    async def close(self) -> None:
        """Flush, and close everything. A cancellation waits for the end of it. Raises as the blocking call."""
        await in_thread(self.blocking.close)
        self.blocking.background_only.discard(get_ident())

    async def abandon(self) -> None:
        """Close everything as the end of the process would."""
        await in_thread(self.blocking.abandon)
        self.blocking.background_only.discard(get_ident())

    async def __aenter__(self) -> VHost:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self.blocking.closed is None or isinstance(self.blocking.closed, VHostDown):
            await self.close()
