"""De-duplication: while a message with a key is in a queue, a publish with it adds nothing."""

from __future__ import annotations

import pytest

from msgstore_queues import aio
from msgstore_queues.keys import KEY
from msgstore_queues.testing.backing_queues import take_all


def bodies(jobs):
    """Take and acknowledge all ready messages."""
    found = take_all(jobs)
    jobs.ack(*found)
    return [received.body for received in found]


def test_key_of_a_ready_or_unacked_message_adds_nothing(vhost):
    jobs = vhost.queue("jobs")
    jobs.publish(b"1", key="a")
    jobs.publish(b"2", key="a")
    jobs.publish(b"3", key="b", delay=0)
    assert len(jobs) == 2
    received = jobs.take()
    assert (received.body, received.headers[KEY]) == (b"1", "a")
    jobs.publish(b"4", key="a")
    received.nack()
    jobs.publish(b"5", key="a", delay=1000)
    assert bodies(jobs) == [b"1", b"3"]
    jobs.publish(b"6", key="a")
    assert bodies(jobs) == [b"6"]


def test_duplicate_is_confirmed_with_its_message_not_earlier(vhost):
    jobs, confirmed = vhost.queue("jobs"), []
    jobs.publish(b"1", key="a", on_confirm=lambda: confirmed.append(1))
    jobs.publish(b"1", key="a", on_confirm=lambda: confirmed.append(2))
    assert confirmed == []
    vhost.flush()
    assert confirmed == [1, 2]
    jobs.publish(b"1", key="a", on_confirm=lambda: confirmed.append(3))
    vhost.flush()
    assert confirmed == [1, 2, 3]


def test_duplicate_of_a_delayed_message_adds_nothing(vhost, clock):
    jobs, confirmed = vhost.queue("jobs"), []
    jobs.publish(b"1", key="a", delay=10, on_confirm=lambda: confirmed.append(1))
    jobs.publish(b"2", key="a", on_confirm=lambda: confirmed.append(2))
    jobs.publish(b"3", key="a", delay=10)
    assert (len(jobs), confirmed) == (0, [])
    vhost.flush()
    assert confirmed == [1, 2]
    clock.passes(vhost, 11)
    jobs.publish(b"4", key="a")
    assert bodies(jobs) == [b"1"]
    jobs.publish(b"5", key="a")  # the copy among the delayed messages is not acknowledged yet
    assert bodies(jobs) == [b"5"]


def test_key_of_a_retry_is_held_until_its_acknowledgement(vhost, clock):
    jobs = vhost.queue("jobs")
    jobs.publish(b"1", key="a")
    jobs.receive().nack(delay=10)
    jobs.publish(b"2", key="a")
    assert len(jobs) == 0
    clock.passes(vhost, 11)
    jobs.publish(b"3", key="a")
    assert bodies(jobs) == [b"1"]
    jobs.publish(b"4", key="a")
    assert bodies(jobs) == [b"4"]


def test_key_is_free_when_its_message_leaves_otherwise(vhost):
    jobs = vhost.queue("jobs", dead_letter="lost", max_length=1, overflow="drop-head")
    jobs.publish(b"1", key="a")
    jobs.receive().nack(requeue=False)
    jobs.publish(b"2", key="a")
    jobs.publish(b"3", key="b")  # pushes it out
    jobs.publish(b"4", key="a")
    assert jobs.purge() == 1
    jobs.publish(b"5", key="a")
    assert bodies(jobs) == [b"5"]
    assert [body[:1] for body in bodies(vhost.queue("lost"))] == [b"1", b"2", b"3"]


def test_purge_keeps_keys_of_unacked_messages(vhost):
    jobs = vhost.queue("jobs")
    jobs.publish(b"1", key="a")
    jobs.publish(b"2", key="b")
    first = jobs.take()
    jobs.purge()
    jobs.publish(b"3", key="a")
    jobs.publish(b"4", key="b")
    first.nack()
    assert bodies(jobs) == [b"1", b"4"]


def test_expired_message_does_not_hold_its_key(vhost, clock):
    """Otherwise a publish would be confirmed, and nothing delivered."""
    jobs = vhost.queue("jobs")
    jobs.publish(b"1", key="a", ttl=5)
    jobs.publish(b"2", key="b", ttl=5, delay=10)
    clock.now += 6
    jobs.publish(b"3", key="a")
    jobs.publish(b"4", key="b")
    assert bodies(jobs) == [b"3", b"4"]


def test_transient_message_does_not_hold_key_for_persistent_one(opened):
    jobs = opened().queue("jobs")
    jobs.publish(b"1", key="a", persistent=False)
    jobs.publish(b"2", key="a", persistent=False)
    jobs.publish(b"3", key="a")
    jobs.publish(b"4", key="a", persistent=False)
    assert len(jobs) == 2
    assert bodies(opened().queue("jobs")) == [b"3"]


@pytest.mark.parametrize("size", [0, 5000])
@pytest.mark.parametrize("is_clean", [True, False])
def test_keys_are_known_after_a_restart(is_clean, size, opened, clock):
    vhost = opened()
    jobs = vhost.queue("jobs", deduplicate=True)
    jobs.publish(b"1" + bytes(size), key="a")
    jobs.publish(b"2" + bytes(size), key="b", delay=10)
    jobs.publish(b"3" + bytes(size), key="c", delay=10, ttl=5)
    jobs.publish(b"4" + bytes(size), key="d")
    jobs.take()
    vhost.flush()
    if not is_clean:
        vhost.abandon()
    vhost = opened()
    jobs = vhost.queue("jobs", deduplicate=True)
    clock.now += 6
    for body, key in ((b"5", "a"), (b"6", "b"), (b"7", "c"), (b"8", "d"), (b"9", "e")):
        jobs.publish(body, key=key)
    assert [body[:1] for body in bodies(jobs)] == [b"1", b"4", b"7", b"9"]
    clock.passes(vhost, 11)
    jobs.publish(b"0", key="b")
    assert [body[:1] for body in bodies(jobs)] == [b"2"]


def test_queue_declared_after_its_use_as_target_reads_keys(opened):
    opened().queue("lost").publish(b"1", key="a")
    vhost = opened()
    vhost.queue("jobs", dead_letter="lost")
    lost = vhost.queue("lost", deduplicate=True)
    lost.publish(b"2", key="a")
    assert bodies(lost) == [b"1"]


def test_fanout_with_a_key_adds_where_it_is_not(vhost):
    queues, confirmed = [vhost.queue(name) for name in "abc"], []
    queues[1].publish(b"1", key="k")
    vhost.publish(bytes(5000), to=["a", "b", "c"], key="k", on_confirm=lambda: confirmed.append(1))
    vhost.flush()
    assert confirmed == [1]
    assert [len(bodies(one)[0]) for one in queues] == [5000, 1, 5000]
    vhost.flush()
    assert len(vhost.persistent) == 0


def test_full_queue_takes_a_duplicate(vhost):
    jobs = vhost.queue("jobs", max_length=1)
    jobs.publish(b"1", key="a")
    jobs.publish(b"2", key="a", block=False)
    assert bodies(jobs) == [b"1"]


def test_keys_with_priorities_and_retries(opened, clock):
    vhost = opened()
    jobs = vhost.queue("jobs", backing={"use": "priority", "levels": 3}, deduplicate=True)
    jobs.publish(b"low", key="a")
    jobs.publish(b"high", key="b", properties={"priority": 2})
    received = jobs.receive()
    received.nack(delay=10)
    vhost = opened()
    jobs = vhost.queue("jobs", deduplicate=True)
    jobs.publish(b"other", key="b", properties={"priority": 1})
    clock.passes(vhost, 11)
    first = jobs.take()
    assert (first.body, first.properties["priority"], first.attempts) == (b"high", 2, 2)
    first.ack()
    assert bodies(jobs) == [b"low"]


def test_keys_of_messages_that_cannot_be_read_are_free(opened):
    vhost = opened()
    jobs = vhost.queue("jobs", deduplicate=True)
    jobs.publish(bytes(5000), key="a")
    jobs.publish(b"2", key="b")
    vhost.flush()
    jobs.set_memory_target(0)
    vhost.flush()
    (msg_id,) = jobs.backing.shared()
    vhost.persistent.remove([msg_id])
    assert jobs.take().body == b"2"
    jobs.publish(b"3", key="a")
    jobs.publish(b"4", key="b")
    assert bodies(jobs) == [b"3"]


async def test_task_waits_for_the_confirm_of_a_duplicate(tmp_path):
    async with aio.open_vhost(tmp_path, sync_interval="1ms") as vhost:
        jobs = await vhost.queue("jobs")
        await jobs.publish(b"1", key="a", confirm=True)
        await jobs.publish(b"2", key="a", confirm=True)
        assert jobs.qsize() == 1
