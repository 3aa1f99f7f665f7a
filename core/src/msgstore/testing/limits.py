"""Limits of time and memory, for inputs that somebody has made to hurt."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What takes longer fails: seconds of the processor, so that a loaded machine decides nothing.

    Where there is no such timer, or off the main thread, a hang stays a hang.
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


def seconds_of(call: Callable[[], object]) -> float:
    """Of the processor."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def is_linear(prepared: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether four times the size takes about four times as long, and not sixteen times. ``prepared(size)`` gives the call.

    The least of some times, and on a loaded machine of some more: what is not linear never passes.
    """
    calls = prepared(size), prepared(4 * size)
    small = large = float("inf")
    for _ in range(3):
        small, large = min(small, seconds_of(calls[0])), min(large, seconds_of(calls[1]))
        if large <= 9 * small + 0.03:
            return True
    return False


def peak_of(call: Callable[[], object]) -> int:
    """Bytes that a call had of the memory, at the most, beside what was there before."""
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
