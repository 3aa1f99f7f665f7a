"""A Ctrl-C at any line of a worker: the vhost goes on, or is closed. What was confirmed and not acknowledged is there, the
directory is free, and no thread is left.

An interrupt is raised by a trace function at line events of our modules, or comes as a signal at a random time.
"""

from __future__ import annotations

import dis
import linecache
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import msgstore_queues
from msgstore.contract import StoreClosed
from msgstore_queues import open_vhost
from msgstore_queues.testing.backing_queues import take_all

PACKAGE = str(Path(msgstore_queues.__file__).parent)
SAMPLE = 150
"""Lines of each history at which it is interrupted."""
OPTIONS = {"sync_interval": "365d", "embed_below": 64}


class Worker:
    """Publishes, takes, acknowledges and returns messages, and notes what it was promised."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.confirmed: set[int] = set()
        self.maybe_gone: set[int] = set()
        """Those whose acknowledgement has begun."""
        self.vhost = open_vhost(path, **OPTIONS)
        self.jobs = self.vhost.queue("jobs", max_length=6, overflow="drop-head", dead_letter="lost")

    def run(self, steps: int = 3) -> None:
        jobs, number = self.jobs, 0
        for _ in range(steps):
            for size in (0, 0, 100):
                body, one = b"%06d" % number + bytes(size), number
                jobs.publish(body, on_confirm=lambda one=one: self.confirmed.add(one))
                number += 1
            self.vhost.flush()
            with jobs.consume(prefetch=3) as consumer:
                first, second, third = next(consumer), next(consumer), next(consumer)
                self.ack(first)
                second.nack()
                third.nack(requeue=False)
            received = jobs.receive()
            received.nack()
            jobs.get()
            self.maybe_gone.add(int(jobs._taken[0][1].body[:6]))
            jobs.task_done()
            jobs.publish(b"%06d" % number, delay=1000)
            number += 1
        self.vhost.close()

    def ack(self, received) -> None:
        self.maybe_gone.add(int(received.body[:6]))
        received.ack()

    def check(self) -> None:
        """Look at the vhost, and at its directory afterwards."""
        if self.vhost.closed is None:
            self.jobs.publish(b"999999", on_confirm=lambda: self.confirmed.add(999999))
            self.vhost.flush()
            assert 999999 in self.confirmed
            self.vhost.close()
        for call in (self.vhost.flush, self.jobs.receive, lambda: self.jobs.publish(b"")):
            with pytest.raises(StoreClosed):
                call()
        self.vhost.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("msgstore") and thread.is_alive()]
        with open_vhost(self.path, **OPTIONS) as vhost:
            found = {int(received.body[:6]) for name in ("jobs", "lost") for received in take_all(vhost.queue(name))}
        assert self.confirmed - self.maybe_gone <= found, "lost"


def leaves_block(frame) -> bool:
    """Return True if a frame is about to leave a ``with`` block: a trace function can raise there, and a signal handler not."""
    code = frame.f_code
    if not linecache.getline(code.co_filename, frame.f_lineno).lstrip().startswith("with "):
        return False
    return not dis.opname[code.co_code[frame.f_lasti]].startswith("LOAD_FAST")


class AtLine:
    """A trace function that raises KeyboardInterrupt at a line event of our modules, counted from 0; without one it counts."""

    def __init__(self, line: int | None) -> None:
        self.line, self.count, self.place = line, 0, ""

    def __call__(self, frame, event, argument):
        return self.in_frame if frame.f_code.co_filename.startswith(PACKAGE) else None

    def in_frame(self, frame, event, argument):
        if event == "line" and not leaves_block(frame):
            self.count += 1
            if self.count - 1 == self.line:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.in_frame


def run_traced(worker: Worker, tracer: AtLine) -> None:
    usual = sys.gettrace()
    sys.settrace(tracer)
    try:
        worker.run()
    finally:
        sys.settrace(usual)


@pytest.mark.crash
def test_interrupt_at_a_line_loses_and_locks_nothing(tmp_path):
    whole = AtLine(None)
    run_traced(Worker(tmp_path / "whole"), whole)
    assert whole.count > SAMPLE
    usable = 0
    for line in sorted(random.Random(1).sample(range(whole.count), SAMPLE)):
        worker, tracer = Worker(tmp_path / str(line)), AtLine(line)
        with pytest.raises(KeyboardInterrupt):
            run_traced(worker, tracer)
        usable += worker.vhost.closed is None
        try:
            worker.check()
        except BaseException as error:
            error.add_note(f"interrupted at {tracer.place}")
            raise
    assert 0 < usable < SAMPLE


def test_interrupted_notify_does_not_keep_the_thread_of_the_vhost(tmp_path):
    """The interrupt comes when the waiting thread has been woken, and is still listed as waiting. Then it waits once more."""

    class Waiters(deque):
        def remove(self, waiter):
            clock._waiters = deque(self)
            raise KeyboardInterrupt

    def work(vhost):
        with pytest.raises(KeyboardInterrupt):
            vhost.queue("jobs").publish(b"")

    vhost = open_vhost(tmp_path, sync_interval="365d")
    clock: Any = vhost._flusher._clock
    while not clock._waiters:
        time.sleep(0.001)
    clock._waiters, usual = Waiters(clock._waiters), vhost.abandon

    def abandon():
        while len(clock._waiters) < 2:  # the thread has been woken, and waits again
            time.sleep(0.001)
        usual()

    vhost.abandon = abandon
    thread = threading.Thread(target=work, args=(vhost,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not vhost._flusher._thread.is_alive()


def test_interrupt_where_a_flush_ends_closes_the_vhost(tmp_path, monkeypatch):
    """The flush has not noted yet that it is over, so the vhost looks as if it were in a callback."""
    vhost = open_vhost(tmp_path, sync_interval="365d")
    usual = type(vhost._flusher).flush_locked

    def flush_locked(flusher):
        usual(flusher)
        flusher._thread_of_flush = threading.get_ident()
        raise KeyboardInterrupt

    monkeypatch.setattr(type(vhost._flusher), "flush_locked", flush_locked)
    with pytest.raises(KeyboardInterrupt):
        vhost.flush()
    monkeypatch.undo()
    assert not vhost._flusher._thread.is_alive()
    open_vhost(tmp_path).close()


def test_interrupt_in_the_middle_of_a_close_unlocks(tmp_path, monkeypatch):
    vhost = open_vhost(tmp_path)
    monkeypatch.setattr(vhost.persistent, "abandon", interrupt_once(vhost.persistent.abandon))
    with pytest.raises(KeyboardInterrupt):
        vhost.close()
    open_vhost(tmp_path).close()


def interrupt_once(call):
    rings = [True]

    def interrupted():
        if rings:
            rings.clear()
            raise KeyboardInterrupt
        call()

    return interrupted


def test_interrupted_drop_or_return_closes_the_vhost(tmp_path, monkeypatch):
    """Otherwise a message would be with nobody until the next start."""
    for number, change in enumerate(("publish", "nack", "close")):
        vhost = open_vhost(tmp_path / str(number), sync_interval="365d")
        jobs = vhost.queue("jobs", max_length=1, overflow="drop-head")
        jobs.publish(b"1")
        consumer = jobs.consume()
        calls = {
            "publish": lambda jobs=jobs: jobs.publish(b"2"),
            "nack": lambda consumer=consumer: next(consumer).nack(),
            "close": lambda consumer=consumer: [next(consumer), consumer.close()],
        }
        for name in ("_bury", "return_to_places"):
            monkeypatch.setattr(jobs, name, lambda *_, **__: raise_interrupt())
        with pytest.raises(KeyboardInterrupt):
            calls[change]()
        with pytest.raises(StoreClosed, match="KeyboardInterrupt came in the middle of a change"):
            jobs.receive()


def raise_interrupt():
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_interrupt_by_signal_loses_and_locks_nothing(tmp_path):
    """In a process of its own: what a signal leaves of the standard library's locks is not for other tests."""
    command = [sys.executable, "-X", "faulthandler", __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def interrupt_by_signals(path: Path, signals: int = 100) -> None:
    rng, times = random.Random(1), []
    for number in range(3):
        worker = Worker(path / f"timed{number}")
        begin = time.perf_counter()
        worker.run()
        times.append(time.perf_counter() - begin)
    number = came = 0
    while came < signals:
        number += 1
        assert number < 20 * signals, f"{came} signals came in time"
        worker = Worker(path / str(number))
        came += is_interrupted(worker, rng.uniform(1e-6, min(times)))
        worker.check()


def is_interrupted(worker: Worker, seconds: float) -> bool:
    """Run a worker, and send a signal that raises KeyboardInterrupt. Return False if it came too late."""
    rings = [True]

    def ring(*_: object) -> None:
        if rings:
            rings.clear()
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        worker.run()
        rings.clear()
    except KeyboardInterrupt:
        return True
    finally:
        rings.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


if __name__ == "__main__":
    interrupt_by_signals(Path(sys.argv[1]))
