"""Backing queue ``mirror``: lost, stale and failing copies, and copies that disagree."""

from __future__ import annotations

import errno
import json
import random
import shutil
from pathlib import Path

import pytest

from msgstore.contract import StoreError, StoreLocked
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

    def __init__(self):
        self._paths = {}

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

    def sync_directory(self, path):
        if path in (self.failing_sync, self.failing):
            raise OSError(errno.EIO, "Input/output error", str(path))


@pytest.fixture
def subject():
    return next(one for one in installed_backing_queues() if one.descriptor.name == "mirror")


def open_failing(subject: Subject, path):
    files = FailBelow()
    vhost = subject.open(path, files)
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
