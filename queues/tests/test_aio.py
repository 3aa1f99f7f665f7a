"""The asyncio API: what waits, what wakes it, what a cancellation leaves, and what runs on the thread of the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from asyncio import QueueEmpty, QueueFull, sleep

import pytest

from msgstore.contract import ConfigError, StoreClosed, StoreIOError
from msgstore_queues import aio, vhost
from msgstore_queues.errors import QueueFailed
from msgstore_queues.flusher import Flusher
from msgstore_queues.stdlib import QueueShutDown
from queues_support import bodies

SECONDS = 30
"""After which a test that waits for something has failed."""


@pytest.fixture
def options():
    return {}


@pytest.fixture
def opened(runner, tmp_path, options):
    """A vhost that is flushed when the test says so, or as the test's ``options`` say."""

    async def open_vhost():
        return await aio.open_vhost(tmp_path, **{"sync_interval": "365d", **options})

    vhost = runner.run(open_vhost())
    yield vhost
    runner.run(vhost.close())


@pytest.fixture
def jobs(runner, opened):
    return runner.run(opened.queue("jobs"))


async def start(coroutine):
    """Run a coroutine in a task, until it waits."""
    task = asyncio.create_task(coroutine)
    await sleep(0)
    return task


def in_thread(call, *arguments):
    """Call on another thread, without looking at the event loop meanwhile."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join(SECONDS)


async def test_worker_takes_what_was_published_and_acknowledges(tmp_path, opened, jobs):
    for number in range(5):
        await jobs.publish(b"%d" % number, headers={"number": number})
    async for message in jobs.consume():
        assert message.body == b"%d" % message.headers["number"]
        if message.headers["number"] == 3:
            break
        message.ack()
    await opened.close()
    async with aio.open_vhost(tmp_path) as again:
        assert bodies((await again.queue("jobs")).blocking) == [b"3", b"4"]


async def test_open_may_be_awaited(tmp_path):
    opened = await aio.open_vhost(tmp_path)
    await (await opened.queue("jobs", items="json")).put({"a": 1})
    await opened.close()
    async with aio.open_vhost(tmp_path) as opened:
        assert opened.queues() == ["jobs"]
        assert await (await opened.queue("jobs", items="json")).get() == {"a": 1}


async def test_same_object_until_the_queue_is_deleted(opened):
    first = await opened.queue("jobs")
    assert await opened.queue("jobs") is first
    waits = await start(first.get())
    await opened.delete("jobs")
    with pytest.raises(StoreClosed, match="was deleted"):
        await waits
    assert await opened.queue("jobs") is not first


@pytest.mark.parametrize("options", [{"sync_interval": 0}])
async def test_message_for_several_queues_is_in_each_and_may_be_browsed(flushes, opened):
    queues = [await opened.queue(name) for name in "ab"]
    waits = await start(queues[1].get())
    await opened.publish(b"1", ["a", "b"], headers={"n": 1})
    assert await waits == b"1"
    assert [message.body for message in await queues[0].browse()] == [b"1"]
    assert queues[0].qsize() == 1
    assert not queues[0].blocking.is_changed, "the publish returned before its flush"
    await opened.close()
    assert threading.get_ident() not in flushes


# -- confirms and flushes -------------------------------------------------------------------------------------------------


async def test_publish_with_confirm_returns_after_the_flush(jobs):
    await jobs.publish(b"accepted")
    confirmed = await start(jobs.publish(b"confirmed", confirm=True))
    assert not confirmed.done()
    await jobs.flush()
    await confirmed


async def test_publish_whose_confirm_cannot_come_fails(opened, jobs):
    confirmed = await start(jobs.publish(b"", confirm=True))
    await opened.abandon()
    with pytest.raises(StoreClosed):
        await confirmed
    assert not jobs._unconfirmed


@pytest.fixture
def flushes(monkeypatch):
    """Threads on which a flush has begun."""
    threads, usual = [], Flusher.flush_locked

    def flush_locked(self):
        threads.append(threading.get_ident())
        usual(self)

    monkeypatch.setattr(Flusher, "flush_locked", flush_locked)
    return threads


@pytest.mark.parametrize("options", [{"sync_interval": 0}, {"max_unconfirmed": 1}])
async def test_no_flush_runs_on_the_thread_of_the_loop(flushes, opened):
    jobs = await opened.queue("jobs", dead_letter="lost")
    await jobs.publish(b"1")
    assert flushes
    assert not jobs.blocking.is_changed, "the publish returned before its flush"
    await jobs.publish(b"2", confirm=True)
    jobs.put_nowait(b"3")
    (await jobs.receive()).ack()
    (await jobs.receive()).nack(requeue=False)
    await jobs.get()
    jobs.task_done()
    await jobs.purge()
    await jobs.join()
    await opened.close()
    assert threading.get_ident() not in flushes


async def test_one_flush_serves_all_tasks_that_wait(flushes, jobs):
    await jobs.publish(b"")
    await asyncio.gather(*(jobs.flush() for _ in range(50)))
    assert len(flushes) == 1


def fail():
    raise OSError("no space")


async def test_publish_of_a_queue_that_fails_is_told(monkeypatch, jobs):
    """A confirm that cannot come any more ends the publish."""
    publish = await start(jobs.publish(b"1", confirm=True))
    monkeypatch.setattr(jobs.blocking.backing, "write", lambda: 1 / 0)
    with pytest.raises(QueueFailed):
        await jobs.flush()
    with pytest.raises(QueueFailed, match="queue 'jobs'"):
        await publish
    await jobs.publish(b"2")
    await jobs.flush()
    assert bodies(jobs.blocking) == [b"2"]


async def test_flush_that_fails_says_so_and_the_next_succeeds(monkeypatch, jobs):
    await jobs.publish(b"1")
    with monkeypatch.context() as broken:
        broken.setattr(jobs.blocking.backing, "write", fail)
        with pytest.raises(StoreIOError):
            await jobs.flush()
    await jobs.flush()


# -- waiting --------------------------------------------------------------------------------------------------------------


async def test_message_of_another_thread_wakes_a_task(jobs):
    first, second = await start(jobs.get()), await start(jobs.get())
    in_thread(lambda: [jobs.blocking.put(b"1"), jobs.blocking.put(b"2")])
    assert [await first, await second] == [b"1", b"2"]


@pytest.mark.parametrize("change", ["take", "purge", "shutdown"])
async def test_change_of_another_thread_wakes_a_publisher(change, opened):
    jobs = await opened.queue("jobs", max_length=1)
    await jobs.put(b"1")
    waits = await start(jobs.put(b"2"))
    in_thread(getattr(jobs.blocking, change))
    if change == "shutdown":
        with pytest.raises(QueueShutDown):
            await waits
    else:
        await waits
        assert bodies(jobs.blocking) == [b"2"]


async def test_publisher_waits_for_the_room_that_its_message_needs(opened):
    """The first message leaves room for a small one only. The task must not look again and again meanwhile."""
    jobs = await opened.queue("jobs", max_bytes="10B")
    for size in (4, 4):
        await jobs.put(bytes(size))
    large = await start(jobs.put(bytes(9)))
    await jobs.get()
    for _ in range(10):
        await sleep(0)
    assert not large.done()
    await jobs.get()
    await large
    assert bodies(jobs.blocking) == [bytes(9)]


async def test_timeouts_and_calls_that_do_not_wait(opened):
    jobs = await opened.queue("jobs", max_length=1)
    for call in (jobs.get, jobs.receive, jobs.consume().receive):
        with pytest.raises(QueueEmpty):
            await call(block=False)
        with pytest.raises(QueueEmpty):
            await call(timeout=0.001)
        with pytest.raises(ValueError, match="non-negative"):
            await call(timeout=-1)
    await jobs.put(b"")
    for call in (jobs.put, jobs.publish):
        with pytest.raises(QueueFull):
            await call(b"", block=False)
        with pytest.raises(QueueFull):
            await call(b"", timeout=0.001)
        with pytest.raises(ValueError, match="non-negative"):
            await call(b"", timeout=-1)
    assert not any(len(group) for group in jobs._groups)
    rejects = await opened.queue("rejects", max_length=1, overflow="reject")
    await rejects.put(b"")
    with pytest.raises(QueueFull):
        await rejects.put(b"")


async def test_join_waits_for_acknowledgements_of_other_threads(jobs):
    await jobs.put(b"1")
    received = await jobs.receive()
    joined = await start(jobs.join())
    assert not joined.done()
    in_thread(received.ack)
    await joined


async def test_acknowledgement_just_before_a_join_waits_is_seen(jobs):
    """The queue does not know the loop yet, so the other thread cannot wake the task."""
    jobs.blocking.put(b"1")
    received, usual = jobs.blocking.take(), jobs._bind
    jobs._bind = lambda: [in_thread(received.ack), usual()]
    await jobs.join()


async def test_task_done_acknowledges_the_message_of_its_task(jobs):
    for body in (b"1", b"2"):
        await jobs.put(body)
    assert await jobs.get() == b"1"

    async def other():
        assert await jobs.get() == b"2"
        jobs.task_done()

    await asyncio.create_task(other())
    assert list(jobs.blocking._out) == [0]


async def test_every_waiting_call_ends_when_the_vhost_closes(opened):
    jobs = await opened.queue("jobs", max_length=1)
    await jobs.put(b"")
    empty = await opened.queue("empty")
    tasks = [await start(call) for call in (jobs.put(b""), jobs.join(), empty.get(), anext(empty.consume()))]
    await opened.close()
    for task in tasks:
        with pytest.raises(StoreClosed):
            await task


async def test_shutdown_leaves_messages_to_the_next_run(tmp_path, opened, jobs):
    await jobs.put(b"1")
    jobs.shutdown(immediate=True)
    await jobs.join()
    for call in (jobs.get, jobs.get_nowait, jobs.consume().receive):
        with pytest.raises(QueueShutDown):
            await call()
    assert (jobs.qsize(), jobs.empty(), jobs.full()) == (0, True, False)
    await opened.close()
    async with aio.open_vhost(tmp_path) as again:
        assert await (await again.queue("jobs")).get() == b"1"


# -- cancellations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("call", ["get", "receive", "consume"])
async def test_cancelled_get_loses_nothing(call, steps, jobs):
    """The cancellation comes before the message, or so many steps of the loop after it."""
    consumer = jobs.consume()
    waits = await start(consumer.receive() if call == "consume" else getattr(jobs, call)())
    other = await start(jobs.receive())
    if steps:
        await jobs.put(b"1")
    for _ in range(steps - 1):
        await sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    if waits.cancelled():
        if not steps:
            await jobs.put(b"1")
        assert (await other).body == b"1"
    else:
        assert jobs.unacked == 1
        await jobs.put(b"2")
        assert (await other).body == b"2"
    assert not any(len(group) for group in jobs._groups)


async def test_cancelled_gets_beside_another_thread_lose_nothing(jobs):
    count, rng = 300, random.Random(1)
    thread = threading.Thread(target=lambda: [jobs.blocking.put(b"%d" % number) for number in range(count)])
    thread.start()
    found = []
    while len(found) < count:
        tasks = [asyncio.create_task(jobs.get()) for _ in range(3)]
        for _ in range(rng.randrange(4)):
            await sleep(0)
        for task in rng.sample(tasks, 2):
            task.cancel()
        await asyncio.wait(tasks, timeout=0.01)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        found += [int(task.result()) for task in tasks if not task.cancelled()]
    thread.join()
    assert sorted(found) == list(range(count))


async def test_cancelled_put_adds_nothing_and_wakes_the_next(opened):
    jobs = await opened.queue("jobs", max_length=1)
    await jobs.put(b"1")
    first, second = await start(jobs.put(b"2")), await start(jobs.put(b"3"))
    jobs.get_nowait()
    first.cancel()
    await second
    assert first.cancelled()
    assert bodies(jobs.blocking) == [b"3"]


async def test_cancelled_opening_unlocks_the_directory(monkeypatch, tmp_path):
    usual, begun, go_on = vhost.open_vhost, threading.Event(), threading.Event()

    def open_vhost(*arguments, **options):
        begun.set()
        assert go_on.wait(SECONDS)
        return usual(*arguments, **options)

    async def opening():
        await aio.open_vhost(tmp_path)

    monkeypatch.setattr(vhost, "open_vhost", open_vhost)
    task = await start(opening())
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    usual(tmp_path).close()


async def test_task_that_is_cancelled_closes_its_vhost(tmp_path):
    received = asyncio.Event()

    async def work():
        async with aio.open_vhost(tmp_path) as opened:
            jobs = await opened.queue("jobs")
            await jobs.put(b"1")
            async for _ in jobs.consume():
                received.set()

    task = asyncio.create_task(work())
    await received.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with aio.open_vhost(tmp_path) as opened:
        message = await (await opened.queue("jobs")).receive()
        assert message.is_redelivered


# -- consumers ------------------------------------------------------------------------------------------------------------


async def test_consumer_holds_at_most_its_prefetch(jobs):
    for number in range(4):
        await jobs.put(b"%d" % number)
    async with jobs.consume(prefetch=2) as consumer:
        first, second = await anext(consumer), await anext(consumer)
        third = await start(anext(consumer))
        await sleep(0)
        assert not third.done()
        in_thread(first.ack)
        assert (await third).body == b"2"
        fourth = await start(anext(consumer))
        second.nack(delay=1000)
        assert (await fourth).body == b"3"
    assert bodies(jobs.blocking) == [b"2", b"3"]
    assert len(jobs._groups) == 3


async def test_shutdown_ends_the_iteration_when_the_queue_is_empty(opened, jobs):
    await jobs.put(b"1")
    jobs.shutdown()
    assert [message.body async for message in jobs.consume()] == [b"1"]
    full = await opened.queue("full")
    for _ in range(2):
        await full.put(b"")
    full.shutdown()
    assert len([1 async for _ in full.consume(prefetch=1)]) == 1


async def test_closed_consumer_ends_its_iteration(jobs):
    consumer = jobs.consume()
    waits = await start(consumer.receive())
    await consumer.close()
    with pytest.raises(QueueShutDown):
        await waits
    assert [1 async for _ in consumer] == []


async def test_vhost_of_configuration_file(tmp_path):
    file = tmp_path / "msgstore.toml"
    file.write_text('[vhosts.work]\npath = "data"\n[vhosts.work.queues.jobs]\nmax_attempts = 5\n')
    config = aio.load_config(file)
    async with config.open("work") as opened:
        jobs = await opened.queue("jobs")
        assert jobs.blocking.options.max_attempts == 5
    with pytest.raises(ConfigError, match=r"no table \[vhosts.works\]"):
        await config.open("works")


@pytest.mark.parametrize("begun", [False, True])
async def test_cancelled_flush_costs_others_nothing(begun, opened, jobs):
    """Whoever ends a program cancels all tasks, also that of a flush for which others wait."""
    await jobs.publish(b"1")
    waits = asyncio.ensure_future(opened.flush())
    await sleep(0)
    if begun:
        await sleep(0)
    opened._next_flush and opened._next_flush.cancel()
    await waits
    await jobs.publish(b"2")
    await opened.flush()
    assert not opened.blocking.queue("jobs").is_changed


async def test_cancelled_call_of_flush_is_cancelled(opened, jobs):
    await jobs.publish(b"1")
    waits = asyncio.ensure_future(opened.flush())
    await sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
