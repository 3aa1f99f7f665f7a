"""Threads beside each other on one backend; on an index: readers without the lock, writers under one, as those of a store."""

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

from msgstore.contract import Index
from msgstore.contract.locations import NUMBER_SHIFT, pack_location


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


_NOT_OF_THE_INDEX = ("msgstore.testing.concurrency", "msgstore.testing.index_", "threading", "concurrent")


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


class Versions:
    """Entries whose location is a version, and versions only grow: a reader knows from before and after what it may see.

    The first half of the ids are always there, the others come and go.
    """

    def __init__(self, index: Index, count: int = 96) -> None:
        self.index = index
        self.ids = [random.Random(n).randbytes(16) for n in range(count)]
        self.kept = count // 2
        self.lock = threading.Lock()
        self.said = [1] * count
        """The newest version of each id that a writer was done with."""
        self.newest = 1
        """No version above this was given yet."""
        self.reads = 0
        index.enter(self.ids, [pack_location(1, n, 1) for n in range(count)])

    def write(self, stop: threading.Event) -> None:
        choices = [self._enter, self._relocate, self._count, self._come_and_go]
        rng = random.Random(1)
        while not stop.is_set():
            for _ in range(10):
                with self.lock:
                    rng.choice(choices)(rng)
            time.sleep(0)  # or nobody else gets the lock

    def _enter(self, rng: random.Random) -> None:
        chosen = rng.sample(range(len(self.ids)), 40)
        version = self._next()
        self.index.enter([self.ids[n] for n in chosen], [pack_location(version, n, 1) for n in chosen])
        self._done(chosen, version)

    def _relocate(self, rng: random.Random) -> None:
        chosen = [n for n in rng.sample(range(len(self.ids)), 40) if self.index.references(self.ids[n])]
        version = self._next()
        old = [self.index.get(self.ids[n]) or 0 for n in chosen]
        self.index.relocate([self.ids[n] for n in chosen], old, [pack_location(version, n, 1) for n in chosen])
        self._done(chosen, version)

    def _count(self, rng: random.Random) -> None:
        chosen = [self.ids[n] for n in rng.sample(range(self.kept), 20)]
        for msg_id in chosen:
            self.index.add_reference(msg_id)
        self.index.release(chosen)

    def _come_and_go(self, rng: random.Random) -> None:
        chosen = [self.ids[n] for n in rng.sample(range(self.kept, len(self.ids)), 20)]
        self.index.release([msg_id for msg_id in chosen for _ in range(self.index.references(msg_id))])

    def _next(self) -> int:
        self.newest += 1
        return self.newest

    def _done(self, chosen: list[int], version: int) -> None:
        for n in chosen:
            self.said[n] = version

    def read(self, stop: threading.Event) -> None:
        rng = random.Random(2)
        while not stop.is_set():
            n = rng.randrange(len(self.ids))
            before = self.said[n]
            location = self.index.get(self.ids[n])
            after = self.newest
            self.reads += 1
            if location is None:
                assert n >= self.kept, "an entry that is never removed was not there for an instant"
            else:
                version = location >> NUMBER_SHIFT
                assert location == pack_location(version, n, 1), f"a location that nobody gave: {location:#x}"
                assert before <= version <= after, (
                    f"version {version}, where {before} was there before and {after} is the newest"
                )

    def commit(self, stop: threading.Event) -> None:
        while not stop.wait(0.002):  # or what is committed is always the same: the writer needs the lock, too
            with self.lock:
                self.index.freeze({b"version": b"%d" % self.newest})
            self.index.commit()
