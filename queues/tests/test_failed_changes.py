"""A message whose change has failed is not lost from sight: the call may be repeated, or the thread of the vhost repeats it."""

from __future__ import annotations

import errno

import pytest

from msgstore.contract import StoreIOError
from msgstore_queues.contract import Delivery
from queues_support import bodies, open_on, publish
from support import HookedFiles, failing

MEMORY = {"use": "variable", "memory": 0}


@pytest.fixture
def files():
    return HookedFiles()


@pytest.fixture
def vhost(files, tmp_path):
    vhost = open_on(tmp_path, files)
    yield vhost
    vhost.abandon()


def behind_one_on_disk(vhost, **options):
    """Return a queue, and an unacked message of it: that before it is on disk only, and is read to put it back."""
    jobs = vhost.queue("jobs", backing=MEMORY, **options)
    publish(jobs, b"0", b"1", b"2")
    vhost.flush()
    first, second, third = (jobs.receive() for _ in range(3))
    second.ack()
    first.nack()
    vhost.flush()
    return jobs, third


@pytest.mark.parametrize("repeated", ["nack", "ack", "clock"])
def test_message_that_could_not_be_given_back_is_still_unacked(repeated, vhost, files, clock):
    jobs, received = behind_one_on_disk(vhost)
    files.before("pread", failing())
    with pytest.raises(StoreIOError):
        received.nack()
    if repeated == "clock":
        clock.passes(vhost, 2)
    else:
        getattr(received, repeated)()
    clock.passes(vhost, 2)
    assert jobs.unacked == 0
    assert bodies(jobs) == ([b"0"] if repeated == "ack" else [b"0", b"2"])


def test_message_that_was_given_back_later_belongs_to_who_takes_it(vhost, files, clock):
    """The clock does not put back what somebody has taken meanwhile."""
    jobs, received = behind_one_on_disk(vhost)
    files.before("pread", failing())
    with pytest.raises(StoreIOError):
        received.nack()
    received.nack()
    taken = [jobs.take(), jobs.take()]
    clock.passes(vhost, 2)
    assert (len(jobs), jobs.unacked) == (0, 2)
    jobs.ack(*taken)
    assert jobs.unfinished_tasks == 0


@pytest.mark.parametrize("options", [{"retry_delay": 10}, {"dead_letter": "failed"}])
def test_message_is_ready_again_if_its_target_cannot_be_made(options, vhost, files, monkeypatch):
    jobs = vhost.queue("jobs", **options)
    jobs.publish(b"1")
    received = jobs.receive()
    monkeypatch.setattr(files, "make_directory", failing(errno.ENOSPC))
    with pytest.raises(StoreIOError):
        received.nack(requeue="dead_letter" not in options)
    assert bodies(jobs) == [b"1"]


def test_expired_messages_before_one_that_cannot_be_read_are_buried(vhost, monkeypatch):
    jobs = vhost.queue("jobs", dead_letter="failed")
    jobs.publish(b"stale", ttl=-1)
    jobs.publish(b"fresh")
    fetch, found = jobs.backing.fetch, iter((None, failing()))

    def fetch_once() -> Delivery | None:
        return (next(found, None) or fetch)()

    monkeypatch.setattr(jobs.backing, "fetch", fetch_once)
    with pytest.raises(StoreIOError):
        jobs.take()
    vhost.flush()
    assert jobs.unacked == 0
    assert bodies(vhost.queue("failed")) == [b"stale"]
    assert bodies(jobs) == [b"fresh"]


def test_message_is_not_dropped_for_one_that_is_not_added(vhost, monkeypatch):
    jobs = vhost.queue("jobs", max_length=1, overflow="drop-head", dead_letter="failed")
    jobs.publish(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(jobs.backing, "publish", failing())
        with pytest.raises(StoreIOError):
            jobs.publish(b"second")
    assert (bodies(jobs), bodies(vhost.queue("failed"))) == ([b"first"], [])
