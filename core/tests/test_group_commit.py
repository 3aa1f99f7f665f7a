"""Group commit: a thread that waits for the run of another thread. ``tests/test_clients.py`` has the runs of many threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from msgstore.engine.write.flusher import GroupCommit


@pytest.mark.parametrize(("succeeded", "runs"), [(True, 0), (False, 1)])
def test_waiter_runs_the_work_if_run_failed(succeeded, runs):
    group, done = GroupCommit(threading.Lock()), []

    def wait(timeout):
        group._next = None  # the other thread has started its run, and ended it
        return True

    group._next = SimpleNamespace(succeeded=succeeded, done=SimpleNamespace(acquire=wait, release=lambda: None))
    group.run(lambda: done.append(1))
    assert len(done) == runs
