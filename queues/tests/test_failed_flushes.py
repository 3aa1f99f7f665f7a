"""A flush writes what came before it. If it fails, the next one repeats it, and confirms all."""

from __future__ import annotations

import threading

import pytest

from msgstore.contract import StoreIOError
from queues_support import open_on, publish
from support import HookedFiles, failing


class SyncedFiles(HookedFiles):
    """Knows the files that were synced."""

    def __init__(self):
        super().__init__()
        self.synced = []

    def sync(self, fd):
        super()._run("sync", fd)
        self.synced.append(self.identity(fd))


def test_flush_after_failed_one_writes_later_messages(tmp_path):
    files, confirmed = HookedFiles(), []
    vhost = open_on(tmp_path, files)
    jobs = vhost.queue("jobs")
    jobs.publish(b"0", on_confirm=lambda: confirmed.append(0))
    files.before("pwrite", failing())
    with pytest.raises(StoreIOError):
        vhost.flush()
    jobs.publish(b"1", on_confirm=lambda: confirmed.append(1))
    vhost.flush()
    assert confirmed == [0, 1]
    vhost.abandon()
    with open_on(tmp_path) as vhost:
        assert len(vhost.queue("jobs")) == 2


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_flush_after_failed_one_syncs_all_queues(operation, tmp_path):
    """Confirmed messages survive a power failure: each file is synced after its last write."""
    files = SyncedFiles()
    vhost = open_on(tmp_path, files, durability="fsync")
    jobs, others = vhost.queue("jobs", index="v2"), vhost.queue("others", index="v2")
    vhost.flush()
    jobs.publish(b"0")
    vhost.flush()
    others.publish(b"1")
    jobs.publish(b"2")
    files.before(operation, failing())
    with pytest.raises(StoreIOError):
        vhost.flush()
    files.synced.clear()
    vhost.flush()
    entries = {files.identity(path) for path in vhost.directory.glob("queues/*/0.q*")}
    vhost.close()
    assert len(entries) == 4
    assert entries <= set(files.synced)


def test_flush_leaves_what_is_newer_to_the_next_one(tmp_path):
    vhost = open_on(tmp_path)
    jobs = vhost.queue("jobs")
    jobs.publish(b"0")
    jobs.backing.begin_flush()
    jobs.publish(b"1")
    assert [jobs.take().body, jobs.take().body] == [b"0", b"1"]
    publish(jobs, b"2", b"3")
    jobs.backing.write()
    vhost.abandon()
    with open_on(tmp_path) as vhost:
        assert [message.body for message in vhost.queue("jobs").browse()] == [b"0"]


@pytest.mark.parametrize("store", ["persistent", "transient"])
def test_bodies_that_cannot_be_removed_are_removed_by_the_next_flush(store, tmp_path, monkeypatch):
    """Once, and no reference of another queue; and the confirms come."""
    large, confirmed = bytes(5000), []
    with open_on(tmp_path) as vhost:
        jobs, other = vhost.queue("jobs"), vhost.queue("other")
        vhost.publish(large, ["jobs", "other"])
        jobs.publish(large, persistent=False)
        jobs.set_memory_target(0)
        vhost.flush()
        assert len(vhost.transient) == 1
        jobs.ack(jobs.take(), jobs.take())

        def fail_once(ids):
            monkeypatch.undo()
            raise StoreIOError("no space", ids=ids)

        monkeypatch.setattr(getattr(vhost, store), "remove", fail_once)
        other.publish(b"1", on_confirm=lambda: confirmed.append(1))
        with pytest.raises(StoreIOError, match="no space"):
            vhost.flush()
        assert vhost._flusher._flush_at is not None
        vhost.flush()
        assert confirmed == [1]
        assert (len(vhost.persistent), len(vhost.transient)) == (1, 0)
        assert other.take().body == large


def test_proxy_that_passes_all_calls_on_gets_whole_messages(tmp_path):
    class Proxy:
        def __init__(self, below):
            self.below = below

        def __getattr__(self, name):
            return getattr(self.below, name)

    with open_on(tmp_path) as vhost:
        jobs = vhost.queue("jobs")
        with jobs.lock:
            jobs.renew(Proxy(jobs.backing))
        published = []
        jobs.backing.publish = published.append
        jobs.publish(b"1")
        assert [message.body for message in published] == [b"1"]


def test_clock_that_is_set_back_delays_no_flush(opened, clock):
    """Messages are confirmed by a clock that nobody sets."""
    vhost, confirmed = opened(sync_interval=0.01), threading.Event()
    clock.now -= 3600
    vhost.queue("jobs").publish(b"1", on_confirm=confirmed.set)
    clock.now -= 3600
    assert confirmed.wait(30)
