"""Probes of the kit's tests: generated inputs, damage, limits of time and memory, and threads that call one backend at once."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

T = TypeVar("T")
Batch = list[tuple[bytes, bytes]]
"""(id, body) of each message; ids differ."""
_SUPPRESSED = (
    HealthCheck.function_scoped_fixture,  # a subject is a value
    HealthCheck.differing_executors,  # tests are inherited
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)


def tried(examples: int, *, shortened: bool = True) -> settings:
    """Settings with the same examples in each run, so that the result for one backend does not change. ``shortened``: False
    where an example takes so long that the search for the shortest one would take minutes."""
    return settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=_SUPPRESSED,
        phases=[phase for phase in settings().phases if shortened or phase is not Phase.shrink],
    )  # fmt: skip


bodies = st.one_of(
    st.binary(max_size=80),
    st.integers(0, 700).map(bytes),
    st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(0, 60)),
)
"""Short bodies of any bytes, and runs of one byte, zeros above all, that cross a disk sector."""
texts = st.text("abcdefgh", max_size=60).map(str.encode)
"""Bodies that no format can take for a record."""


def batches(of: st.SearchStrategy[bytes] = bodies, *, least: int = 0, most: int = 12) -> st.SearchStrategy[Batch]:
    messages = st.tuples(st.binary(min_size=16, max_size=16), of)
    return st.lists(messages, min_size=least, max_size=most, unique_by=lambda message: message[0])


def numbered(count: int, body: bytes = b"") -> Batch:
    """The same messages each time, with evenly spread ids and one body."""
    return [((0x9E3779B97F4A7C15F39CC0605CEDC835 * (n + 1) % 2**128).to_bytes(16), body) for n in range(count)]


def flipped(data: bytes, bit: int) -> bytes:
    """Return a copy with another value of one bit."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


LARGE_NUMBERS = (b"\xff" * 4, b"\x7f\xff\xff\xff")
"""Sizes that nothing has, without a sign and with one."""


def damaged_at(data: bytes, at: int) -> Iterator[bytes]:
    """Return copies that are the same up to the offset ``at``: cut off, one bit flipped, and another number there."""
    yield data[:at]
    yield from (flipped(data, 8 * at + bit) for bit in range(8))
    for number in (*LARGE_NUMBERS, bytes(4)):
        yield (data[:at] + number + data[at + 4 :])[: len(data)]


# -- time and memory ------------------------------------------------------------------------------------------------------


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

    Smaller sizes come first: there, time that grows too fast is found in less time.
    """
    calls = (prepared(length) for length in (size // 16, size // 4, size, 4 * size) if length)
    return all(_takes_four_times(few, many) for few, many in pairwise(calls))


def _takes_four_times(few: Callable[[], object], many: Callable[[], object]) -> bool:
    """Compare the shortest of up to three measurements, because a loaded machine makes single ones longer."""
    shortest = {few: float("inf"), many: float("inf")}
    for _ in range(3):
        for call in (few, few, many):
            begin = time.process_time()
            call()
            shortest[call] = min(shortest[call], time.process_time() - begin)
        if shortest[many] <= 9 * shortest[few] + 0.03:
            return True
        if shortest[many] > 12 * shortest[few] + 0.5:  # a loaded machine does not explain that
            break
    return False


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that a call had allocated at one time."""
    return measured(call)[1]


def measured(call: Callable[[], T]) -> tuple[T, int]:
    """Return the result of a call, and the most bytes that it had allocated at one time."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = call()
        return result, tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()


def steps_of(call: Callable[[], object]) -> int:
    """Return the number of lines of Python that a call runs, also those that run again."""
    steps = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(usual)
    return steps


def tree(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file with its size, times, and content."""
    files = [top, *sorted(top.rglob("*"))]
    return {
        str(path): (*path.stat()[6:7], path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in files
    }


def open_files() -> int:
    """Return how many files this process has open."""
    gc.collect()
    return len([*Path("/dev/fd").iterdir()])


CLOCKS = {"time", "time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
"""Qualified names of functions of ``time`` and ``datetime`` that tell the time of the machine."""


def clocks_of(backend: object, call: Callable[[], object]) -> set[str]:
    """Return the functions that tell time, and that modules beside that of the backend's class call during ``call``."""
    packages = tuple(cls.__module__.rpartition(".")[0] or cls.__module__ for cls in type(backend).__mro__)
    asked = set[str]()

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and frame.f_globals.get("__name__", "").startswith(packages):
            asked.update({getattr(called, "__qualname__", "")} & {*CLOCKS, "monotonic", "monotonic_ns"})

    usual = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(usual)
    return asked


OTHER_TIMES = (10**9, 4_090_000_000)
"""Seconds since the epoch of moments in 2001 and in 2099."""


_TOOLS = (sys.stdlib_module_names - {"time", "datetime"}) | {"_pytest", "pytest", "hypothesis", "execnet", "xdist"}


class _AnyDatetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


class _Datetime(datetime, metaclass=_AnyDatetime):
    """The class ``datetime`` where another time is set: the original asks the machine."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime.fromtimestamp(time.time(), tz)

    today = now

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.fromtimestamp(time.time(), UTC).replace(tzinfo=None)


@contextlib.contextmanager
def clock_at(seconds: int) -> Iterator[None]:
    """Let ``time.time``, ``time.time_ns`` and ``datetime.now`` give this time, in seconds since the epoch, also in modules that
    have imported the functions themselves."""
    usual = {time.time: partial(float, seconds), time.time_ns: partial(int, seconds * 10**9), datetime: _Datetime}
    others = {id(asked): (asked, other) for asked, other in usual.items()}
    with pytest.MonkeyPatch.context() as clock:
        for module in [it for name, it in [*sys.modules.items()] if name.partition(".")[0] not in _TOOLS]:
            for name, value in [*getattr(module, "__dict__", {}).items()]:
                if id(value) in others and module.__name__ != __name__:
                    clock.setattr(module, name, others[id(value)][1])
        yield


ZONES = ("UTC0", "EST5EDT,M3.2.0,M11.1.0")
WINTER, SUMMER = 1_704_067_200, 1_719_792_000
"""Midnights in UTC, in seconds since the epoch."""


@contextlib.contextmanager
def in_zone(zone: str) -> Iterator[None]:
    """Let local times be those of a zone, where the system can change it."""
    tzset: Callable[[], None] = getattr(time, "tzset", lambda: None)
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("TZ", zone)
            tzset()
            yield
    finally:
        tzset()


# -- threads --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def eager_switching(seconds: float = 1e-6) -> Iterator[None]:
    """Switch threads after a few bytecodes instead of 5 ms, so that changes that are not atomic become visible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def long_body(number: int) -> bytes:
    """Return a body of this thread that compresses to a half. It keeps a compressor in C busy while other threads run."""
    return random.Random(number).randbytes(12_000).hex().encode()


class LineInterleaver:
    """Runs ``look`` on a second thread between every two steps of Python in a call, to cover thread interleavings. A look that
    waits for a lock continues later."""

    def __init__(self, look: Callable[[], object], patience: float = 0.02, least: float = 0.0003) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(1)
        self._looking: Future[object] | None = None
        self._patience, self._least = patience, least
        """Seconds for a look. Shorter after each one that waits for a lock, and the fewest."""
        self.steps = 0
        """Steps of the call."""
        self.waits = self.longest = 0
        """Steps, one after the other, at which one look waited for a lock: those before the end of the call, and the most."""

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
            self.steps += 1
            if wait([self._looking], self._patience).not_done:
                self.waits += 1
                self.longest = max(self.longest, self.waits)
                self._patience = max(self._patience / 2, self._least)
            else:
                self.waits = 0
        return self._trace
