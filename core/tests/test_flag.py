"""The flag: as an event, with any number of threads, and wherever a signal comes."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from msgstore.engine.state.flag import Flag


def test_it_is_what_was_said_last():
    flag = Flag()
    assert not flag.is_set()
    assert not flag.wait(0)
    for _ in range(2):
        flag.set()
        flag.set()
        assert flag.is_set()
        assert flag.wait(10)
        assert flag.wait(10)
        flag.clear()
        flag.clear()
        assert not flag.is_set()
        assert not flag.wait(0.001)
    assert Flag(True).wait(10)


def test_who_waits_is_let_go():
    flag = Flag()
    through = []
    threads = [threading.Thread(target=lambda: through.append(flag.wait(60))) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)  # most of them have come to wait by then; the test holds for those that come later, too
    assert through == []
    flag.set()
    for thread in threads:
        thread.join(30)
    assert through == [True] * 5


def test_nobody_misses_a_set():
    """Two threads that take turns: each waits until the other has set its flag."""
    ours, theirs, rounds = Flag(), Flag(), 3000
    missed = []

    def answer():
        for _ in range(rounds):
            missed.append(not ours.wait(30))
            ours.clear()
            theirs.set()

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(rounds):
        ours.set()
        assert theirs.wait(30)
        theirs.clear()
    thread.join()
    assert not any(missed)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_a_signal_does_not_jam_it():
    """``threading.Event`` does not pass this: sooner or later ``set`` is left with its lock, and the next waits for ever."""
    flag, came = Flag(), 0

    def ring(*_):
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                while True:
                    flag.set()
                    flag.clear()
            except KeyboardInterrupt:
                came += 1
            flag.set()
            assert flag.wait(10)
            flag.clear()
            assert not flag.wait(0)
    finally:
        signal.signal(signal.SIGALRM, usual)
    assert came == 500
