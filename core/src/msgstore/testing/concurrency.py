"""Threads that call one backend at the same time."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType
from typing import Any

THREADS, ROUNDS = 8, 20
"""A conflict of two threads that depends on chance appears in one of the rounds."""


@contextlib.contextmanager
def eager_switching(seconds: float = 1e-6) -> Iterator[None]:
    """Switch threads after a few bytecodes instead of 5 ms, so that changes that are not atomic become visible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


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
    """Return a body of this thread that compresses to a half. It keeps a compressor in C busy while other threads run."""
    return random.Random(number).randbytes(12_000).hex().encode()


class BetweenLines:
    """Runs ``look`` on a second thread between every two steps of Python in a call, to cover thread interleavings. A look that
    waits for a lock continues later."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(1)
        self._looking: Future[None] | None = None
        self._patience = 0.02
        """Seconds for a look. Shorter after each one that waits for a lock."""

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
        if frame.f_globals.get("__name__", "").startswith(("msgstore.testing", "threading", "concurrent")):
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode"):
            if self._looking is not None and self._looking.done():
                self._looking.result()
                self._looking = None
            if self._looking is None:
                self._looking = self._pool.submit(self._look)
            if wait([self._looking], self._patience).not_done:
                self._patience = max(self._patience / 2, 0.0003)
        return self._trace
