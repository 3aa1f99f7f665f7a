"""A process that forks keeps its vhosts; the child is told that it has none, and writes nothing."""

from __future__ import annotations

import contextlib
import os

import pytest

from attempts import in_child
from msgstore.contract import StoreClosed, StoreLocked
from msgstore_queues import open_vhost
from queues_support import bodies, open_on

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.parametrize("held", [False, True])
def test_forked_child_is_refused_parent_goes_on(tmp_path, held):
    """``held``: the locks are held, and nothing in the child releases them."""
    vhost = open_on(tmp_path)
    jobs = vhost.queue("jobs", retry_delay=10)
    jobs.publish(b"before")
    received = jobs.receive()
    calls = [
        lambda: jobs.publish(b"child"), jobs.receive, received.ack, received.nack, jobs.purge, jobs.browse, jobs.flush,
        vhost.flush, lambda: vhost.queue("jobs"), lambda: vhost.delete("jobs"),
    ]  # fmt: skip

    def check():
        for call in calls:
            with pytest.raises(StoreClosed, match=f"open in process {os.getppid()}"):
                call()
        vhost.close()
        vhost.abandon()
        with vhost:
            pass
        with pytest.raises(StoreLocked):
            open_vhost(tmp_path)
        return "refused"

    with contextlib.ExitStack() as stack:
        for lock in [vhost._flusher.lock, vhost._lock, jobs.lock] if held else []:
            stack.enter_context(lock)
        assert in_child(check) == "refused"
    received.ack()
    jobs.publish(b"after")
    vhost.flush()
    vhost.abandon()
    with open_on(tmp_path) as again:
        assert bodies(again.queue("jobs")) == [b"after"]


def test_child_that_lives_on_does_not_keep_the_locks(tmp_path):
    vhost = open_on(tmp_path / "first")
    vhost.queue("jobs", backing={"use": "mirror", "directory": str(tmp_path / "second")})
    begun, end = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.write(begun[1], b"1")
        os.read(end[0], 1)
        os._exit(0)
    os.read(begun[0], 1)
    vhost.close()
    open_on(tmp_path / "first").close()
    os.write(end[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
