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
def eager_switching(seconds: float = 1e-6) -> Iterator[None]:
    """Switch threads after a few bytecodes instead of 5 ms, so that changes that are not atomic become visible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


THREADS = 8
ROUNDS = 20
"""Rounds of each thread: a conflict of two threads that depends on chance appears in one of them."""
LONG = 24_000
"""Bytes of a body that keep a compressor in C busy for long enough for other threads to run."""


def at_once(run: Callable[[int], None], rounds: int = ROUNDS) -> None:
    """Call ``run(thread number)`` ``rounds`` times on each of ``THREADS`` threads, which begin together."""
    begin = threading.Barrier(THREADS)

    def go_on(number: int) -> None:
        begin.wait(30)
        for _ in range(rounds):
            run(number)

    with eager_switching(), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(go_on, range(THREADS)))


def long_body(number: int) -> bytes:
    """Return a body of this thread that compresses to about a half."""
    return random.Random(number).randbytes(LONG // 2).hex().encode()


def together(seconds: float, *tasks: Callable[[threading.Event], None], enough: Callable[[], bool]) -> None:
    """Run every task on its own thread until the event is set: after ``seconds``, or later, when ``enough`` returns True, but
    after 30 s at the latest. Raises the first exception of a task."""
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
    assert not any(thread.is_alive() for thread in threads), "a thread does not return"


class BetweenLines:
    """Runs ``look`` on a second thread between every two Python lines of a call, to cover thread interleavings. A look that
    waits for a lock continues later."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(1)
        self._looking: Future[None] | None = None

    def run(self, call: Callable[[], object]) -> None:
        """Run ``call``. Raises what ``call`` or a look raised."""
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
