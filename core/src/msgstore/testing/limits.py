"""Limits of time and memory for hostile inputs."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def within(seconds: float = 20.0) -> Iterator[None]:
    """Fail if the block uses more than ``seconds`` of CPU time. CPU time makes the result independent of machine load.

    Without such a timer, or outside the main thread, there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGVTALRM, _too_late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _too_late(_: int, __: FrameType | None) -> None:
    raise AssertionError("it hangs: it was stopped after some seconds")


def is_linear(prepared: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Return True if four times the size takes about four times as long, not sixteen times. ``prepared(size)`` gives the call.

    Compares the shortest of up to three measurements, because a loaded machine makes single ones longer.
    """
    shortest = {prepared(size): float("inf"), prepared(4 * size): float("inf")}
    for _ in range(3):
        for call in shortest:
            begin = time.process_time()
            call()
            shortest[call] = min(shortest[call], time.process_time() - begin)
        small, large = shortest.values()
        if large <= 9 * small + 0.03:
            return True
    return False


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that a call had allocated at one time."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()
