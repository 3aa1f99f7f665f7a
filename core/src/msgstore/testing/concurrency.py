"""Threads that call one backend at the same time."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType
from typing import Any


@contextlib.contextmanager
def eager_switching() -> Iterator[None]:
    """Threads take turns after some bytecodes, not after 5 ms: what is not atomic is met."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


THREADS = 8
ROUNDS = 20
"""Of each thread: what two of them meet in only now and then is met in one of so many."""
LONG = 24_000
"""Bytes of a body that compression in C works on for long enough to let the other threads go on meanwhile."""


def at_once(run: Callable[[int], None], rounds: int = ROUNDS) -> None:
    """So many times on each of ``THREADS`` threads, which begin together. ``run`` is given the thread's number."""
    begin = threading.Barrier(THREADS)

    def go_on(number: int) -> None:
        begin.wait(30)
        for _ in range(rounds):
            run(number)

    with eager_switching(), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(go_on, range(THREADS)))


def long_body(number: int) -> bytes:
    """Another for each thread, of which a compressor makes about a half."""
    return random.Random(number).randbytes(LONG // 2).hex().encode()


def together(seconds: float, *tasks: Callable[[threading.Event], None], enough: Callable[[], bool]) -> None:
    """Run every task on a thread of its own until the event is set: after so many seconds, and where a thread had to wait for
    its turn, later, when there was ``enough``; after 30 s it is set anyway. Raises what one of them raised."""
    stop, errors = threading.Event(), list[BaseException]()

    def guarded(task: Callable[[threading.Event], None]) -> None:
        try:
            task(stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=[task], daemon=True) for task in tasks]
    with eager_switching():
        for thread in threads:
            thread.start()
        latest = time.monotonic() + 30
        stop.wait(seconds)
        while not enough() and time.monotonic() < latest and not stop.wait(0.02):
            pass
        stop.set()
        for thread in threads:
            thread.join(30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread does not come back"


class BetweenLines:
    """Calls ``look`` on a thread of its own wherever another thread could come in while something runs: between any two lines
    of Python. A look that has to wait for a lock is let go on, and done when it can be."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(1)
        self._looking: Future[None] | None = None

    def run(self, call: Callable[[], object]) -> None:
        """Raises what ``call`` or a look raised."""
        usual = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(usual)
            with self._pool:
                if self._looking is not None:
                    self._looking.result(30)
        self._look()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not frame.f_globals.get("__name__", "").startswith(
            ("msgstore.testing", "threading", "concurrent")
        ):
            if self._looking is not None and self._looking.done():
                self._looking.result()
                self._looking = None
            if self._looking is None:
                self._looking = self._pool.submit(self._look)
            wait([self._looking], 0.02)
        return self._trace
