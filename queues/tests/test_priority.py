"""Backing queue ``priority``: order, directories, levels that come and go, and directories that RabbitMQ has made."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from msgstore.contract import ConfigError, StoreIOError
from msgstore.testing.faults import UnsyncedFiles
from msgstore_queues.directories import QUEUE_FILE, queue_path
from msgstore_queues.testing.backing_queues import take_all
from queues_support import bodies, open_on
from rabbitmq_files.names import encode_queue_name, queue_directory, sub_queue

PRIORITY = {"use": "priority", "levels": 3}


def publish(jobs, *priorities):
    for number, priority in enumerate(priorities):
        jobs.publish(b"%d of %d" % (number, priority), properties={"priority": priority} if priority else None)


def test_highest_priority_is_delivered_first(vhost):
    jobs = vhost.queue("jobs", backing=PRIORITY)
    publish(jobs, 0, 2, 1, 200, 0, 1)
    assert bodies(jobs) == [b"1 of 2", b"3 of 200", b"2 of 1", b"5 of 1", b"0 of 0", b"4 of 0"]


def test_restart_without_options_keeps_levels_and_order(opened):
    publish(opened().queue("jobs", backing=PRIORITY), 0, 2, 1)
    vhost = opened()
    assert vhost.queues() == ["jobs"]
    jobs = vhost.queue("jobs")
    assert jobs.stats()["levels"] == {2: 1, 1: 1, 0: 1}
    publish(jobs, 9)
    assert bodies(jobs) == [b"1 of 2", b"0 of 9", b"2 of 1", b"0 of 0"]


def test_requeued_messages_of_all_levels_return_in_order(vhost):
    jobs = vhost.queue("jobs", backing=PRIORITY)
    publish(jobs, 0, 1, 0, 1)
    found = take_all(jobs)
    jobs.nack(found[3], found[0], found[1])
    assert bodies(jobs) == [b"1 of 1", b"3 of 1", b"2 of 0"]
    assert jobs.unacked == 4


def test_sub_queues_are_in_directories_of_rabbitmq(vhost):
    vhost.queue("jobs", backing=PRIORITY)
    for level in range(3):
        path = vhost.directory / "queues" / queue_directory(b"/", sub_queue(b"jobs", level))
        assert (path / ".queue_name").read_bytes() == encode_queue_name(b"/", sub_queue(b"jobs", level), 2)
    assert json.loads((queue_path(vhost.directory, "/", "jobs") / QUEUE_FILE).read_text())["backing"] == "priority"


def test_fewer_levels_still_deliver_what_is_there(opened):
    publish(opened().queue("jobs", backing={"use": "priority", "levels": 5}), 4, 0)
    jobs = opened().queue("jobs", backing={"use": "priority", "levels": 2})
    publish(jobs, 4)
    assert bodies(jobs) == [b"0 of 4", b"0 of 4", b"1 of 0"]


def test_directory_without_plain_one_is_served_with_priorities(opened):
    vhost = opened()
    publish(vhost.queue("jobs", backing=PRIORITY), 0, 2, 1)
    directory = vhost.directory
    vhost.close()
    plain = queue_path(directory, "/", "jobs")
    for path in [plain, *(directory / "queues" / queue_directory(b"/", sub_queue(b"jobs", level)) for level in range(3))]:
        (path / QUEUE_FILE).unlink()
    (plain / ".queue_name").unlink()
    plain.rmdir()
    (directory / "msgstore-vhost.json").unlink()
    vhost = opened()
    assert vhost.queues() == ["jobs"]
    assert bodies(vhost.queue("jobs")) == [b"1 of 2", b"2 of 1", b"0 of 0"]


def test_delete_leaves_no_directory(vhost):
    publish(vhost.queue("jobs", backing=PRIORITY), 0, 1, 2)
    vhost.flush()
    vhost.delete("jobs")
    assert list((vhost.directory / "queues").iterdir()) == []


def test_other_backing_below_is_refused_and_queue_stays(opened):
    publish(opened().queue("jobs", backing=PRIORITY), 1)
    vhost = opened()
    with pytest.raises(ConfigError, match=r"'memory' is asked for\. Name 'variable'"):
        vhost.queue("jobs", backing={**PRIORITY, "over": "memory"})
    assert bodies(vhost.queue("jobs")) == [b"0 of 1"]


def test_all_256_priorities_work(vhost):
    jobs = vhost.queue("jobs", backing={"use": "priority", "levels": 256, "over": "memory"})
    publish(jobs, 0, 255, 254)
    assert bodies(jobs) == [b"1 of 255", b"2 of 254", b"0 of 0"]


class SyncFiles(UnsyncedFiles):
    """Knows which files have changed since they were synced."""

    fail = -1
    """The number of syncs before the one that fails."""

    def __init__(self):
        self.changed = set()

    def pwrite(self, fd, data, offset):
        super().pwrite(fd, data, offset)
        self.changed.add(self.identity(fd))

    def sync(self, fd):
        self.fail -= 1
        if self.fail == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.changed.discard(self.identity(fd))


def count_descriptors():
    return sum(1 for _ in Path("/dev/fd").iterdir())


@pytest.mark.parametrize("fail", range(3))
@pytest.mark.parametrize("index", ["v1", "v2"])
def test_failed_sync_leaves_no_level_unsynced(index, fail, tmp_path):
    """Every level is synced in the flush that fails, or in the one that confirms. No descriptor stays open."""
    files, confirmed = SyncFiles(), []
    with open_on(tmp_path, files, durability="fsync") as vhost:
        jobs = vhost.queue("jobs", backing=PRIORITY, index=index)
        publish(jobs, 0, 1, 2)
        vhost.flush()
        before = count_descriptors()
        for priority in range(3):
            jobs.publish(b"", properties={"priority": priority}, on_confirm=lambda: confirmed.append(1))
        files.changed.clear()
        files.fail = fail
        try:
            vhost.flush()
        except StoreIOError:
            assert not confirmed
            vhost.flush()
        assert len(confirmed) == 3
        assert files.changed == set()
        assert count_descriptors() <= before
