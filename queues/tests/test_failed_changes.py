"""A message whose change has failed is not lost from sight: the call may be repeated, or the thread of the vhost repeats it."""

from __future__ import annotations

import contextlib
import errno

import pytest

from msgstore.contract import StoreError, StoreIOError
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


@pytest.mark.parametrize("backing", ["variable", "mirror"])
@pytest.mark.parametrize("fails", ["the file of the queue", "the index"])
def test_queue_whose_change_of_options_fails_keeps_its_messages(backing, fails, files, tmp_path):
    options = {"use": backing} | ({"directory": str(tmp_path / "second")} if backing == "mirror" else {})
    changed = options | ({"over": {"use": "variable", "memory": 5}} if backing == "mirror" else {"memory": 5})
    with open_on(tmp_path / "first", files) as vhost:
        publish(vhost.queue("jobs", index="v2", backing=options), b"1", b"2")
    vhost = open_on(tmp_path / "first", files)
    operation, name = ("replace", "msgstore-queue.json") if fails == "the file of the queue" else ("read_file", ".qi")
    files.before(operation, failing(errno.ENOSPC), name, times=None)
    for _ in range(2):
        with contextlib.suppress(StoreError):
            vhost.queue("jobs", backing=changed)
    files.hooks.clear()
    assert len(vhost.queue("jobs", backing=changed)) == 2
    vhost.abandon()
    with open_on(tmp_path / "first") as vhost:
        assert bodies(vhost.queue("jobs")) == [b"1", b"2"]


def test_queue_that_fails_by_the_clock_does_not_stop_others(vhost, files, clock, caplog):
    jobs, received = behind_one_on_disk(vhost)
    others = vhost.queue("others")
    others.publish(b"1", delay=5)
    files.before("pread", failing(), times=None)
    with pytest.raises(StoreIOError):
        received.nack()
    clock.passes(vhost, 10)
    assert "Input/output error" in caplog.text
    assert bodies(others) == [b"1"]
    files.hooks.clear()
    clock.passes(vhost, 2)
    assert bodies(jobs) == [b"0", b"2"]


@pytest.mark.parametrize("index", ["v1", "v2"])
def test_failed_purge_leaves_what_is_behind_the_failure(index, vhost, files):
    jobs = vhost.queue("jobs", index=index, backing=MEMORY)
    count = 40_000 if index == "v1" else 10_000
    for number in range(count):
        jobs.publish(b"%d" % number, key="first" if number == 0 else None)
    vhost.flush()
    vhost.flush()
    assert jobs.stats()["delta"]
    files.before("pread", failing())
    with pytest.raises(StoreIOError):
        jobs.purge()
    left = len(jobs)
    jobs.backing.check()
    jobs.publish(b"again", key="first")
    assert (len(jobs), jobs.purge(), len(jobs), jobs.stats()["body_bytes"]) == (left + 1, left + 1, 0, 0)
    assert jobs.take() is None
