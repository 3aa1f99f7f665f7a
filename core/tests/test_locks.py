"""What an exception from outside leaves of locks, and of turns that others wait for."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from msgstore.engine.state.locks import is_owned, release_on_exit
from msgstore.engine.write import group_commit as turns
from msgstore.engine.write.group_commit import GroupCommit


def test_whoever_comes_without_a_lock_leaves_without_it():
    lock, other = threading.RLock(), threading.RLock()

    def interrupted():
        with release_on_exit(lock, other):
            lock.acquire()
            lock.acquire()
            assert is_owned(lock)
            raise KeyboardInterrupt  # before the block is entered that lets go of it

    other.acquire()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_owned(lock)
    assert is_owned(other)


def test_one_that_was_never_left_releases_nothing():
    lock = threading.RLock()
    suspended = release_on_exit(lock)
    suspended.__enter__()  # an exception came behind it
    with lock:
        del suspended
        assert is_owned(lock)


@pytest.mark.parametrize("tells", [True, False])
def test_who_waits_for_an_interrupted_turn_takes_one_of_its_own(tells, monkeypatch):
    """Whether or not the one who was to do it came to tell the others."""
    monkeypatch.setattr(turns, "_PATIENCE", 30 if tells else 0.05)
    usual, done = GroupCommit._end, []
    shared = GroupCommit(threading.RLock())
    turn, *later = [turns._Turn() for _ in range(3)]
    joined = threading.Thread(target=lambda: shared.take(lambda: done.append("the other")))

    def end(self, ended):
        if ended is turn and not tells:
            raise KeyboardInterrupt
        usual(self, ended)

    def work():
        with shared._mutex:
            shared._next = turn  # still there to be joined, as if it had not begun
        joined.start()
        while not turn.waiting:
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupCommit, "_end", end)
    with mock.patch.object(turns, "_Turn", side_effect=[turn, *later]):
        with pytest.raises(KeyboardInterrupt):
            shared.take(work)
        joined.join(60)
    assert not joined.is_alive()
    assert done == ["the other"]
