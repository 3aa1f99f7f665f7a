"""Waiting in an event loop: for a condition, for another thread, for a limited time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Waiters:
    """Tasks that wait for the same thing, in order. Each has a condition. The first one is woken when its condition holds; when
    it has run, it wakes the next."""

    def __init__(self) -> None:
        self._waiting = deque[tuple[asyncio.Future[None], Callable[[], bool]]]()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, is_possible: Callable[[], bool]) -> None:
        """Wait until the condition holds. The caller then tries, and calls ``wake`` for the next task."""
        future = asyncio.get_running_loop().create_future()
        waiter = future, is_possible
        self._waiting.append(waiter)
        try:
            self.wake()
            await future
        except BaseException:
            self._waiting.remove(waiter)
            self.wake()
            raise
        self._waiting.remove(waiter)

    def wake(self) -> None:
        """Wake the first task, if its condition holds. On the thread of the loop."""
        if self._waiting:
            future, is_possible = self._waiting[0]
            if not future.done() and is_possible():
                future.set_result(None)


def limit(timeout: float | None) -> asyncio.Timeout:
    """Return a context manager that raises TimeoutError. Raises ValueError."""
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return asyncio.timeout(timeout)


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(call, *arguments)


def set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def set_failed(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call on another thread. A cancellation is raised when the call has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller gets
        raise
