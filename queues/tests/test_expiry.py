"""Option ``expires``: a queue that nobody uses is deleted, one in use is not. And what a deletion takes along."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from msgstore.contract import StoreClosed
from msgstore_queues import aio


def test_unused_queue_is_deleted_with_its_messages(opened, clock):
    vhost = opened()
    jobs = vhost.queue("jobs", expires="10s")
    jobs.publish(bytes(5000))
    vhost.flush()
    clock.passes(vhost, 9)
    assert vhost.queues() == ["jobs"]
    clock.passes(vhost, 2)
    assert vhost.queues() == []
    with pytest.raises(StoreClosed, match="nobody used it for 10"):
        jobs.publish(b"1")
    assert vhost.queue("jobs", expires="10s").take() is None
    vhost = opened()
    assert len(vhost.persistent) == 0


USES = [
    "publish",
    "take",
    "ack",
    "nack",
    "unacked",
    "delayed",
    "consumer",
    "closed_consumer",
    "browse",
    "stats",
    "declare",
    "full",
]


@pytest.mark.parametrize("use", USES)
def test_queue_in_use_is_not_deleted(use, vhost, clock):
    jobs = vhost.queue("jobs", expires="10s", max_length=1 if use == "full" else None)
    jobs.publish(b"1")
    received = jobs.take() if use in ("ack", "nack", "unacked") else None
    consumer = jobs.consume() if "consumer" in use else None
    if use == "delayed":
        jobs.publish(b"1", delay=10_000)
    clock.passes(vhost, 11 if received or consumer else 8)
    calls = {
        "publish": lambda: jobs.publish(b"2"),
        "take": lambda: [jobs.take(), jobs.take()][0].ack(),
        "ack": lambda: received.ack(),
        "nack": lambda: received.nack(),
        "closed_consumer": lambda: consumer.close(),
        "browse": lambda: jobs.browse(),
        "full": lambda: jobs._add_if_room(jobs.make_message(b"2"), None, None, None),
        "stats": lambda: jobs.stats(),
        "declare": lambda: vhost.queue("jobs"),
    }
    calls.get(use, lambda: None)()
    clock.passes(vhost, 9)
    assert "jobs" in vhost.queues()
    clock.passes(vhost, 1000)
    clock.passes(vhost, 11)
    assert ("jobs" in vhost.queues()) == (use in ("unacked", "consumer", "delayed"))


def test_waiting_thread_is_a_use(vhost, clock):
    jobs, found = vhost.queue("jobs", expires="10s"), []
    thread = threading.Thread(target=lambda: found.append(jobs.get()))
    thread.start()
    while not jobs._waiting:
        time.sleep(0.001)
    clock.passes(vhost, 100)
    jobs.put(b"1")
    thread.join(30)
    assert found == [b"1"]


async def test_waiting_task_is_a_use(tmp_path, clock):
    async with aio.open_vhost(tmp_path, sync_interval="365d") as vhost:
        jobs = await vhost.queue("jobs", expires="10s")
        task = asyncio.create_task(jobs.get())
        while not jobs.blocking.waiting_tasks:
            await asyncio.sleep(0)
        clock.passes(vhost.blocking, 100)
        await jobs.put(b"1")
        assert await task == b"1"


def test_thread_of_the_vhost_deletes_an_unused_queue(opened):
    vhost = opened()
    vhost.queue("jobs", expires="10ms")
    limit = time.monotonic() + 30
    while vhost.queues() and time.monotonic() < limit:
        time.sleep(0.001)
    assert vhost.queues() == []
    vhost.queue("jobs", expires="10s").publish(b"1")


def test_deleted_queue_takes_its_delayed_messages_along(opened, clock):
    vhost = opened()
    vhost.queue("jobs").publish(bytes(5000), delay=10)
    vhost.queue("jobs").publish(b"2", delay=10)
    vhost.flush()
    vhost.delete("jobs")
    assert vhost.queues() == []
    jobs = vhost.queue("jobs")
    clock.passes(vhost, 11)
    assert jobs.take() is None
    vhost.flush()
    assert len(vhost.persistent) == 0


def test_delete_in_a_callback_is_refused(vhost):
    said = []

    def delete():
        with pytest.raises(RuntimeError, match=r"delete\(\) was called in a callback"):
            vhost.delete("jobs")
        said.append(1)

    vhost.queue("jobs").publish(b"1", on_confirm=delete)
    vhost.flush()
    assert said == [1]


def test_error_in_one_queue_leaves_delays_of_others(vhost, clock, monkeypatch):
    first, second = vhost.queue("first"), vhost.queue("second")
    for jobs in (first, second):
        jobs.publish(b"1", delay=10)
    with monkeypatch.context() as patched:
        patched.setattr(first.delays, "release", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clock.passes(vhost, 11)
    clock.passes(vhost, 2)
    assert (len(first), len(second)) == (1, 1)


def test_two_threads_that_delay_first_share_the_delays(vhost, clock):
    jobs = vhost.queue("jobs")
    found, barrier = [], threading.Barrier(4)

    def delay():
        barrier.wait(30)
        jobs.publish(b"1", delay=10)
        found.append(jobs.delays)

    threads = [threading.Thread(target=delay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(map(id, found))) == 1
    clock.passes(vhost, 11)
    assert len(jobs) == 4
