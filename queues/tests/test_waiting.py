"""What wakes those who wait for a queue, and the limits that hold beside other threads."""

from __future__ import annotations

import queue
import sys
import threading

import pytest

from msgstore.contract import StoreClosed
from msgstore_queues.stdlib import ShutDown
from queues_support import publish


@pytest.fixture
def jobs(vhost):
    return vhost.queue("jobs", max_length=2)


CHANGES = {
    "publish": lambda jobs, received: jobs.publish(b"3"),
    "take": lambda jobs, received: jobs.take(),
    "ack": lambda jobs, received: received.ack(),
    "nack": lambda jobs, received: received.nack(),
    "nack later": lambda jobs, received: received.nack(delay=1000),
    "purge": lambda jobs, received: jobs.purge(),
    "shutdown": lambda jobs, received: jobs.shutdown(),
    "delete": lambda jobs, received: jobs.vhost.delete("jobs"),
    "close": lambda jobs, received: jobs.vhost.close(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_announced_without_the_lock(change, jobs):
    publish(jobs, b"1", b"2")
    received, seen = jobs.receive(), []
    jobs.watch(lambda: seen.append(jobs.lock.locked()))
    CHANGES[change](jobs, received)
    assert seen
    assert not any(seen)


def test_watcher_that_fails_is_logged_and_others_are_called(jobs, caplog):
    seen = []
    for call in (lambda: 1 / 0, lambda: seen.append(1)):
        jobs.watch(call)
    jobs.publish(b"1")
    assert seen == [1]
    assert "a watcher failed" in caplog.text


def test_watch_that_was_taken_back_is_not_called(jobs):
    seen = []
    call = lambda: seen.append(1)  # noqa: E731
    jobs.watch(call)
    jobs.unwatch(call)
    jobs.publish(b"1")
    assert seen == []


def test_publishers_beside_each_other_keep_the_limit(vhost):
    one, seen, count = vhost.queue("one", max_length=1), [], 100
    threads = [threading.Thread(target=lambda: [one.put(b"") for _ in range(count)]) for _ in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(4 * count):
            one.get(timeout=30)
            seen.append(len(one))
    finally:
        sys.setswitchinterval(usual)
        for thread in threads:
            thread.join(30)
    assert max(seen) <= 1


def test_small_message_passes_a_large_one_that_waits(vhost):
    jobs = vhost.queue("jobs", max_bytes="10B")
    for size in (4, 4):
        jobs.publish(bytes(size))
    threads = [threading.Thread(target=jobs.publish, args=(bytes(size),)) for size in (9, 5)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(jobs._not_full._waiters) < number:
            pass
    jobs.receive()
    threads[1].join(30)
    assert jobs.backing.body_bytes == 9
    jobs.purge()
    threads[0].join(30)
    assert jobs.backing.body_bytes == 9


def test_consumer_closed_by_another_thread_ends(jobs):
    consumer, found = jobs.consume(), []
    thread = threading.Thread(target=lambda: found.extend(consumer))
    thread.start()
    while not jobs._waiting:
        pass
    consumer.close()
    thread.join(30)
    assert not thread.is_alive()
    jobs.publish(b"1")
    with pytest.raises(ShutDown):
        consumer.receive()
    assert (found, len(jobs), jobs.unacked) == ([], 1, 0)


def test_shutdown_keeps_messages_and_join_waits_for_those_taken(opened):
    jobs = opened().queue("jobs")
    for body in (b"1", b"2"):
        jobs.put(body)
    jobs.get()
    jobs.shutdown(immediate=True)
    assert (jobs.qsize(), jobs.full(), jobs.unfinished_tasks) == (0, False, 1)
    jobs.task_done()
    jobs.join()
    for call in (
        jobs.get,
        jobs.get_nowait,
        jobs.consume().receive,
        lambda: jobs.publish(b"3"),
        lambda: jobs.publish(b"", delay=1),
    ):
        with pytest.raises(ShutDown):
            call()
    jobs = opened().queue("jobs")
    assert (jobs.get(), jobs.qsize()) == (b"2", 0)


def test_queue_that_is_shut_down_takes_dead_letters(vhost):
    jobs, lost = vhost.queue("jobs", dead_letter="lost"), vhost.queue("lost")
    lost.shutdown()
    jobs.publish(b"1")
    jobs.receive().nack(requeue=False)
    vhost.flush()
    assert (lost.get(), jobs.unacked) == (b"1", 0)


def test_negative_timeout_counts_only_for_calls_that_wait(jobs):
    with pytest.raises(queue.Empty):
        jobs.get(block=False, timeout=-1)
    with pytest.raises(ValueError, match="non-negative"):
        jobs.publish(b"", timeout=-1)
    with pytest.raises(ValueError, match="non-negative"):
        jobs.consume().receive(timeout=-1)


def test_ended_queue_refuses_a_nack(vhost, jobs):
    jobs.publish(b"1")
    received = jobs.receive()
    vhost.close()
    with pytest.raises(StoreClosed):
        received.nack()
