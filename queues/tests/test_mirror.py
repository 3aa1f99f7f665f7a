"""Backing queue ``mirror``: lost, stale and failing copies, and copies that disagree."""

from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from msgstore.contract import StoreError, StoreIOError, StoreLocked
from msgstore.files import Files
from msgstore_queues import open_vhost
from msgstore_queues.backing.mirror_copies import STATE_FILE
from msgstore_queues.testing.backing_queues import bodies, publish
from msgstore_queues.testing.subjects import Subject, installed_backing_queues
from rabbitmq_files.names import queue_directory
from support import flip, slow

STORED = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L/queues"
HASH = queue_directory(b"/", b"jobs")


@pytest.fixture
def places(tmp_path):
    """The directories of both copies."""
    return tmp_path / STORED / HASH, tmp_path / "mirror" / HASH


def opened(path, **options):
    vhost = open_vhost(path, sync_interval="365d", **options)
    return vhost, vhost.queue("jobs", backing={"use": "mirror", "directory": path / "mirror"})


def read(path):
    """Take all messages of the queue, and close it as the end of the process would."""
    vhost, jobs = opened(path)
    try:
        return bodies(jobs)
    finally:
        vhost.abandon()


class FailBelow(Files):
    """Fails each write and each sync below a directory."""

    failing: Path | None = None
    failing_sync: Path | None = None
    failing_read: Path | None = None
    failing_states: Iterator[bool] = iter(())
    """For each of the next writes of a state whether it fails."""

    def __init__(self):
        self._paths = {}
        self.unsynced = set()
        """Files that have changed since they were synced."""

    def open_write(self, path):
        fd = super().open_write(path)
        self._paths[fd] = path
        return fd

    def create(self, path):
        fd = super().create(path)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd, data, offset):
        if self.failing and self.failing in self._paths[fd].parents:
            raise OSError(errno.EIO, "Input/output error", str(self._paths[fd]))
        super().pwrite(fd, data, offset)
        self.unsynced.add(self.identity(fd))

    def pread(self, fd, size, offset):
        if self.failing_read and self.failing_read in self._paths[fd].parents:
            raise OSError(errno.EIO, "Input/output error", str(self._paths[fd]))
        return super().pread(fd, size, offset)

    def write_file(self, path, chunks, *, sync):
        if path.name == STATE_FILE and next(self.failing_states, False):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().write_file(path, chunks, sync=sync)

    def sync(self, fd):
        self.unsynced.discard(self.identity(fd))

    def sync_directory(self, path):
        if path in (self.failing_sync, self.failing):
            raise OSError(errno.EIO, "Input/output error", str(path))


@pytest.fixture
def subject():
    return next(one for one in installed_backing_queues() if one.descriptor.name == "mirror")


def open_failing(subject: Subject, path, **options):
    files = FailBelow()
    vhost = subject.open(path, files, **options)
    return files, vhost, vhost.queue("jobs", **subject.queue_options(path))


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("clean", [True, False])
def test_queue_survives_the_loss_of_a_copy(lost, clean, tmp_path, places):
    """Large messages too, and twice in turn: the copy that was made anew is whole."""
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(20))
    jobs.publish(b"000020" + bytes(20_000))
    jobs.flush()
    vhost.close() if clean else vhost.abandon()
    shutil.rmtree(places[lost])
    assert read(tmp_path) == list(range(21))
    shutil.rmtree(places[1 - lost])
    assert read(tmp_path) == list(range(21))


@pytest.mark.parametrize("failing", [0, 1])
def test_copy_that_fails_is_left_out_and_comes_back(failing, subject, tmp_path, places):
    files, vhost, jobs = open_failing(subject, tmp_path)
    publish(jobs, range(5))
    vhost.flush()
    taken = [jobs.receive() for _ in range(2)]
    files.failing = places[failing]
    publish(jobs, range(5, 8))
    vhost.flush()
    assert jobs.stats()["copies"] == [str(places[1 - failing])]
    jobs.ack(taken[0])
    jobs.nack(taken[1])
    assert bodies(jobs) == list(range(1, 8))
    vhost.flush()
    vhost.abandon()
    assert read(tmp_path) == list(range(1, 8))
    shutil.rmtree(places[1 - failing])
    assert read(tmp_path) == list(range(1, 8))


@pytest.mark.parametrize("failing", [0, 1])
def test_copy_whose_sync_fails_is_left_out(failing, subject, tmp_path, places):
    files, confirmed = FailBelow(), set()
    vhost = subject.open(tmp_path, files, durability="fsync")
    jobs = vhost.queue("jobs", **subject.queue_options(tmp_path))
    publish(jobs, range(3))
    vhost.flush()
    assert [json.loads((place / STATE_FILE).read_text())["position"] for place in places] == [1, 1]
    files.failing_sync = places[failing]
    publish(jobs, range(3, 6), confirmed)
    vhost.flush()
    assert confirmed == {3, 4, 5}
    assert jobs.stats()["copies"] == [str(places[1 - failing])]
    vhost.abandon()
    assert read(tmp_path) == list(range(6))


@pytest.mark.parametrize("failing", [0, 1])
def test_stale_copy_never_wins(failing, subject, tmp_path, places):
    """The copy that was left out comes back twice, as that on a disk which was repaired."""
    files, vhost, jobs = open_failing(subject, tmp_path)
    publish(jobs, range(3))
    vhost.flush()
    files.failing = places[failing]
    publish(jobs, range(3, 6))
    jobs.receive().ack()
    vhost.flush()
    vhost.abandon()
    shutil.copytree(places[failing], tmp_path / "stale")
    assert read(tmp_path) == [1, 2, 3, 4, 5]
    shutil.rmtree(places[failing])
    shutil.copytree(tmp_path / "stale", places[failing])
    assert read(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("failing", [0, 1])
def test_key_is_free_after_a_copy_failed(failing, subject, tmp_path, places):
    """The key of a message that is ready, and of one that was taken and came back."""
    files, vhost, jobs = open_failing(subject, tmp_path)
    jobs.publish(b"000000", key="first")
    jobs.publish(b"000001", key="second")
    taken = jobs.receive()
    files.failing = places[failing]
    vhost.flush()
    assert jobs.stats()["copies"] == [str(places[1 - failing])]
    taken.nack()
    for received in [jobs.receive(), jobs.receive()]:
        received.ack()
    jobs.publish(b"000002", key="first")
    jobs.publish(b"000003", key="second")
    assert bodies(jobs) == [2, 3]
    vhost.abandon()


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("flushes", [1, 3])
def test_copy_that_fails_after_a_full_disk_never_wins(flushes, failing, subject, tmp_path, places):
    """Both copies stay if the one that works cannot save that it goes on alone."""
    files, vhost, jobs = open_failing(subject, tmp_path)
    publish(jobs, range(1))
    vhost.flush()
    publish(jobs, range(1, 2))
    files.failing, files.failing_states = places[1 - failing], repeat(True)
    with pytest.raises(StoreIOError):
        vhost.flush()
    files.failing, files.failing_states = None, iter(())
    vhost.flush()
    assert jobs.stats()["copies"] == list(map(str, places))
    files.failing = places[failing]
    for number in range(flushes):
        jobs.receive().ack()
        publish(jobs, [2 + number])
        vhost.flush()
    vhost.abandon()
    assert read(tmp_path) == list(range(flushes, flushes + 2))


@pytest.mark.parametrize("failing", [0, 1])
def test_copy_whose_failure_cannot_be_saved_is_left_out(failing, subject, tmp_path, places):
    """It has not taken the message that the other has taken."""
    files = FailBelow()
    vhost = subject.open(tmp_path, files)
    over = {"use": "variable", "memory": 0}
    jobs = vhost.queue("jobs", backing={"use": "mirror", "directory": tmp_path / "mirror", "over": over})
    publish(jobs, range(3))
    vhost.flush()
    files.failing_read, files.failing_states = places[failing], repeat(True)
    received = jobs.receive()
    assert (received.body[:6], len(jobs), jobs.unacked) == (b"000000", 2, 1)
    received.ack()
    with pytest.raises(StoreIOError):
        vhost.flush()  # nothing is confirmed before the epoch is saved
    files.failing_states = iter(())
    vhost.close()
    assert read(tmp_path) == [1, 2]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("states", [[True, True], [False, True, True]])
def test_flush_that_failed_has_no_number(states, clean, subject, tmp_path):
    """Otherwise, a copy that has saved it, or has not, differs from the other one for ever, and the vhost cannot be opened."""
    files, vhost, jobs = open_failing(subject, tmp_path)
    for number in range(2):
        publish(jobs, [number])
        files.failing_states = iter(states)
        with pytest.raises(StoreIOError):
            vhost.flush()
    if clean:
        vhost.close()
    else:
        vhost.abandon()
    assert read(tmp_path) == [0, 1]


@pytest.mark.parametrize("failing", [0, 1])
def test_failed_sync_leaves_no_copy_unsynced(failing, subject, tmp_path, places):
    files, vhost, jobs = open_failing(subject, tmp_path, durability="fsync")
    publish(jobs, range(3))
    files.failing_sync, files.failing_states = places[failing], repeat(True)
    with pytest.raises(StoreIOError):
        vhost.flush()
    files.failing_sync, files.failing_states = None, iter(())
    vhost.flush()
    assert jobs.stats()["copies"] == list(map(str, places))
    assert files.unsynced == set()
    vhost.abandon()


def test_messages_of_a_copied_queue_are_marked_as_redelivered(tmp_path, places):
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(3))
    jobs.receive()
    vhost.close()
    shutil.rmtree(places[0])
    vhost, jobs = opened(tmp_path)
    vhost.close()
    shutil.rmtree(places[1])
    vhost, jobs = opened(tmp_path)
    assert jobs.receive().is_redelivered
    vhost.abandon()


@pytest.mark.parametrize("replaced", [0, 1])
def test_copies_of_one_epoch_that_disagree_are_an_error(replaced, tmp_path, places):
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(3))
    vhost.close()
    shutil.copytree(places[replaced], tmp_path / "backup")
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(3, 6))
    vhost.close()
    shutil.rmtree(places[replaced])
    shutil.copytree(tmp_path / "backup", places[replaced])
    with pytest.raises(StoreError, match=f"{places[0]} .* and {places[1]} .* Delete the one that is wrong"):
        opened(tmp_path)
    shutil.rmtree(places[replaced])
    assert read(tmp_path) == list(range(6))


@pytest.mark.parametrize("damaged", [0, 1])
def test_message_that_one_copy_lost_comes_from_the_other(damaged, tmp_path, places):
    vhost = open_vhost(tmp_path, sync_interval="365d")
    over = {"use": "variable", "memory": 0}
    jobs = vhost.queue("jobs", backing={"use": "mirror", "directory": tmp_path / "mirror", "over": over})
    publish(jobs, range(9))
    vhost.flush()
    (entries,) = places[damaged].glob("*.qs")
    flip(entries, entries.read_bytes().index(b"000004"))
    assert bodies(jobs) == list(range(9))
    assert jobs.stats()["copies"] == [str(places[1 - damaged])]
    vhost.abandon()


@pytest.mark.parametrize("damaged", [0, 1])
def test_unclean_stop_and_lost_file_lose_nothing(damaged, tmp_path, places):
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(9))
    vhost.flush()
    vhost.abandon()
    for path in places[damaged].glob("*.q?"):
        path.unlink()
    assert read(tmp_path) == list(range(9))


@pytest.mark.parametrize("damaged", [0, 1])
def test_unclean_stop_and_damaged_message_lose_nothing(damaged, tmp_path, places):
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(9))
    vhost.flush()
    vhost.abandon()
    (entries,) = places[damaged].glob("*.qs")
    flip(entries, entries.read_bytes().index(b"000004"))
    assert read(tmp_path) == list(range(9))


def test_delete_removes_both_copies(tmp_path, places):
    vhost, jobs = opened(tmp_path)
    publish(jobs, range(3))
    vhost.flush()
    vhost.delete("jobs")
    vhost.close()
    assert not any(place.exists() for place in places)


def test_copy_of_another_vhost_is_locked(tmp_path):
    vhost, _ = opened(tmp_path)
    with open_vhost(tmp_path / "other") as other, pytest.raises(StoreLocked, match="mirror"):
        other.queue("jobs", backing={"use": "mirror", "directory": tmp_path / "mirror"})
    vhost.close()


@pytest.mark.parametrize("seed", [0, 1, slow(2), slow(3)])
def test_restart_as_another_kind_keeps_messages(seed, tmp_path, places):
    """Random restarts, each after a clean or an unclean stop, with both copies, one of them, or one that is new."""
    chance, expected, number = random.Random(seed), [], 0
    for _ in range(8):
        vhost, jobs = opened(tmp_path)
        new = range(number, number + chance.randint(0, 5))
        number = new.stop
        publish(jobs, new)
        expected += new
        for _ in range(chance.randint(0, min(3, len(expected)))):
            received = jobs.receive()
            assert received.body[:6] == b"%06d" % expected.pop(0)
            received.ack()
        jobs.flush()
        vhost.close() if chance.random() < 0.5 else vhost.abandon()
        what = chance.choice(["nothing", "lose", "forget"])
        place = chance.choice(places)
        if what == "lose":
            shutil.rmtree(place)
        elif what == "forget":
            (place / STATE_FILE).unlink()
    assert read(tmp_path) == expected
