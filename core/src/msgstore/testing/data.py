"""Generated inputs of the kit's tests: ids, bodies and batches; and limits of time and memory for hostile ones."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Batch = list[tuple[bytes, bytes]]
"""(id, body) of each message; ids differ."""

_SUPPRESSED = (
    HealthCheck.function_scoped_fixture,  # a subject is a value
    HealthCheck.differing_executors,  # tests are inherited
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)


def tried(examples: int) -> settings:
    """Settings with the same examples in each run, so that the result for one backend does not change."""
    return settings(max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=_SUPPRESSED)


ids = st.binary(min_size=16, max_size=16)
bodies = st.one_of(
    st.binary(max_size=80),
    st.integers(0, 700).map(bytes),
    st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(0, 60)),
)
"""Short bodies of any bytes, and runs of one byte, zeros above all, that cross a disk sector."""
texts = st.text("abcdefgh", max_size=60).map(str.encode)
"""Bodies that no format can take for a record."""


def batches(of: st.SearchStrategy[bytes] = bodies, *, least: int = 0, most: int = 12) -> st.SearchStrategy[Batch]:
    return st.lists(st.tuples(ids, of), min_size=least, max_size=most, unique_by=lambda message: message[0])


def numbered(count: int, body: bytes = b"") -> Batch:
    """The same messages each time, with evenly spread ids and one body."""
    return [((0x9E3779B97F4A7C15F39CC0605CEDC835 * (n + 1) % 2**128).to_bytes(16), body) for n in range(count)]


def flipped(data: bytes, bit: int) -> bytes:
    """Return a copy with another value of one bit."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


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
