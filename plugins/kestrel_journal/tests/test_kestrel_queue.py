"""Backing queue ``kestrel``: its journal is one that Kestrel reads, and one of Kestrel is served. The conformance kit of
msgstore-queues tests the rest."""

from __future__ import annotations

import random

import pytest

from msgstore.contract import StoreError
from msgstore_kestrel_journal import replay
from msgstore_kestrel_journal.backing_queue import FILE
from msgstore_kestrel_journal.journal import Journal
from msgstore_queues import open_vhost
from support import slow


def opened(path, **options):
    vhost = open_vhost(path, sync_interval="365d")
    return vhost, vhost.queue("jobs", backing={"use": "kestrel", **options})


def directory_of(vhost):
    (directory,) = vhost.directory.glob("queues/*")
    return directory


def replayed(vhost):
    """Return the bodies that a started Kestrel delivers."""
    found = replay(directory_of(vhost), FILE)
    assert not found.broken
    return [bytes(found.data(place)) for place in found.state.in_delivery_order()]


def bodies(jobs):
    found = []
    while (received := jobs.take()) is not None:
        found.append(received.body)
    return found


@pytest.mark.parametrize("seed", [*range(4), *map(slow, range(4, 10))])
def test_journal_after_acks_in_any_order_has_the_rest(seed, tmp_path):
    chance, left = random.Random(seed), []
    vhost, jobs = opened(tmp_path, journal_size=chance.choice([100, 10_000]))
    taken = []
    for number in range(60):
        jobs.publish(b"%d" % number)
        left.append(b"%d" % number)
        if chance.random() < 0.6 and (received := jobs.take()) is not None:
            taken.append(received)
        while taken and chance.random() < 0.5:
            received = taken.pop(chance.randrange(len(taken)))
            left.remove(received.body)
            received.ack()
        if chance.random() < 0.3:
            vhost.flush()
            assert replayed(vhost) == left
    vhost.close()
    assert replayed(vhost) == left
    vhost, jobs = opened(tmp_path)
    assert bodies(jobs) == left
    vhost.abandon()


def test_delivery_writes_nothing_and_head_leaves_by_one_byte(tmp_path):
    vhost, jobs = opened(tmp_path)
    jobs.publish(b"1")
    jobs.publish(b"2")
    vhost.flush()
    path = directory_of(vhost) / FILE
    size = path.stat().st_size
    received = jobs.receive()
    vhost.flush()
    assert path.stat().st_size == size
    received.ack()
    vhost.flush()
    assert path.stat().st_size == size + 1
    vhost.close()


def test_journal_of_kestrel_is_served(tmp_path):
    """With a reserved item, which comes first."""
    vhost, _ = opened(tmp_path)
    directory = directory_of(vhost)
    vhost.close()
    journal = Journal(directory, FILE)
    for number in range(4):
        journal.add(b"%d" % number, 4_000_000_000_123 if number == 3 else 0)
    journal.remove()
    journal.remove_tentative()
    journal.close()
    vhost, jobs = opened(tmp_path)
    found = [jobs.receive() for _ in range(3)]
    assert [received.body for received in found] == [b"1", b"2", b"3"]
    assert [received.message.expiry_us for received in found] == [0, 0, 4_000_000_000_123_000]
    found[1].ack()
    vhost.flush()
    assert replayed(vhost) == [b"1", b"3"]
    vhost.abandon()


def test_journal_of_a_busy_queue_stays_short(tmp_path):
    vhost, jobs = opened(tmp_path, journal_size=2000)
    path, longest = directory_of(vhost) / FILE, 0
    for _ in range(300):
        jobs.publish(bytes(100))
        vhost.flush()
        jobs.receive().ack()
        vhost.flush()
        longest = max(longest, path.stat().st_size)
    assert 1500 < longest < 2500
    vhost.close()


def test_zeros_after_a_power_failure_are_cut(tmp_path):
    vhost, jobs = opened(tmp_path)
    jobs.publish(b"1")
    vhost.close()
    path = directory_of(vhost) / FILE
    path.write_bytes(path.read_bytes() + bytes(100))
    vhost, jobs = opened(tmp_path)
    jobs.publish(b"2")
    vhost.flush()
    assert replayed(vhost) == [b"1", b"2"]
    vhost.close()


def test_damaged_journal_is_an_error_with_file_and_offset(tmp_path):
    vhost, jobs = opened(tmp_path)
    jobs.publish(b"1")
    vhost.close()
    path = directory_of(vhost) / FILE
    path.write_bytes(path.read_bytes() + b"\x63" + bytes(9))
    with pytest.raises(StoreError, match=f"{path}: cannot be read from byte 22 on: there is no opcode 99"):
        opened(tmp_path)
