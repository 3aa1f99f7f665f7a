"""What fails is opened again: a queue alone, a message store with its vhost, and no other vhost."""

from __future__ import annotations

import random
import signal
import threading
from functools import partial

import attrs
import pytest

import msgstore
from msgstore.contract import MsgStoreError, StoreClosed
from msgstore_queues.catalogue import Catalogue
from msgstore_queues.contract import BackingQueueDescriptor, QueueIndexDescriptor
from msgstore_queues.errors import QueueFailed, StoreFailed, VHostDown
from msgstore_queues.testing.backing_queues import take_all
from queues_support import installed, open_on
from support import slow

LARGE = 200


class Faults:
    """Raises once, in the ``fail_at``-th call of a plugin, before it or after it."""

    def __init__(self, fail_at=None, after=False):
        self.calls, self.fail_at, self.after, self.name = 0, fail_at, after, ""

    def __call__(self, name, call, *given, **named):
        self.calls += 1
        if self.calls - 1 != self.fail_at:
            return call(*given, **named)
        self.name = name
        if self.after:
            call(*given, **named)
        raise LookupError("a bug")


class Failing:
    """A backing queue or a queue index that raises when the faults say so."""

    def __init__(self, below, faults):
        self._below, self._faults = below, faults

    def __len__(self):
        return len(self._below)

    def __getattr__(self, name):
        value = getattr(self._below, name)
        return partial(self._faults, name, value) if callable(value) else value


@attrs.frozen(kw_only=True)
class FailingBacking(BackingQueueDescriptor):
    faults: Faults = attrs.field(eq=False)

    def load_factory(self):
        factory = BackingQueueDescriptor.load_factory(self)
        return lambda context: Failing(factory(context), self.faults)


@attrs.frozen(kw_only=True)
class FailingIndex(QueueIndexDescriptor):
    faults: Faults = attrs.field(eq=False)

    def load_factory(self):
        factory = QueueIndexDescriptor.load_factory(self)
        return lambda context: Failing(factory(attrs.evolve(context, segment_entries=8)), self.faults)


def with_faults(kind, faults):
    """Return a catalogue in which one kind of plugin fails."""
    backings, indexes = dict(installed().backings), dict(installed().indexes)
    if kind == "backing":
        backings = {name: FailingBacking(**fields(one), faults=faults) for name, one in backings.items()}
    else:
        indexes = {name: FailingIndex(**fields(one), faults=faults) for name, one in indexes.items()}
    return Catalogue(indexes, backings)


def fields(descriptor):
    return {field.name: getattr(descriptor, field.name) for field in attrs.fields(type(descriptor))}


def opened(path, catalogue=None, name="/", options=(), **parts):
    return open_on(path, catalogue=catalogue, name=name, parts=parts, embed_below=64, **dict(options))


def body(number, size=0):
    return b"%06d" % number + bytes(size)


def numbers(received):
    return [int(one.body[:6]) for one in received]


# -- a queue --------------------------------------------------------------------------------------------------------------


class History:
    """Random changes of a queue whose plugin fails once, and what they promise."""

    def __init__(self, path, kind, faults, seed):
        self.random, self.faults = random.Random(seed), faults
        self.vhost = opened(path, with_faults(kind, faults))
        self.jobs = self.vhost.queue("jobs", backing={"use": "variable", "memory": 2})
        self.published, self.confirmed, self.lost = [], set(), set()
        self.out, self.acked, self.gone, self.begun = {}, set(), set(), set()
        """Messages taken; acknowledged; acknowledged, and that is on disk; those whose acknowledgement has begun."""
        self.stale, self.errors, self.number = [], [], 0

    def run(self, steps):
        for _ in range(steps):
            step = self.random.choice(
                [self.publish, self.publish, self.publish, self.take, self.take, self.ack, self.nack, self.flush]
            )
            generation = self.jobs.generation
            try:
                step()
            except (QueueFailed, StoreFailed) as error:
                self.errors.append(str(error))
            if self.jobs.generation != generation:
                self.stale += self.out.values()
                self.out = {}
                self.acked = set()

    def publish(self):
        for _ in range(self.random.choice([1, 5])):
            number, self.number = self.number, self.number + 1
            data = body(number, self.random.choice([0, 0, LARGE]))
            self.jobs.publish(
                data, on_confirm=partial(self.confirmed.add, number), on_lost=lambda _, n=number: self.lost.add(n)
            )
            self.published.append(number)

    def take(self):
        for _ in range(3):
            if (received := self.jobs.take()) is not None:
                self.out[int(received.body[:6])] = received

    def some(self):
        return self.random.sample(sorted(self.out), len(self.out) // 2)

    def ack(self):
        for number in self.some():
            self.acked.add(number)
            self.begun.add(number)
            self.out[number].ack()
            del self.out[number]

    def nack(self):
        chosen = self.some()
        self.jobs.nack(*[self.out[number] for number in chosen])
        for number in chosen:
            del self.out[number]

    def flush(self):
        acked = set(self.acked)
        self.vhost.flush()
        self.gone |= acked

    def check(self, path):
        self.faults.fail_at = None
        for one in self.stale:
            one.ack()
            one.nack()
        self.vhost.flush()
        assert set(self.published) <= self.confirmed | self.lost, "neither confirmed nor lost"
        assert not self.confirmed & self.lost
        received = take_all(self.jobs)
        found = numbers(received)
        assert found == sorted(found), "out of order, or twice"
        there = {*found, *self.out}
        assert self.confirmed - self.begun <= there, "confirmed, and lost"
        assert not self.gone & there, "acknowledged, and back"
        stale = {int(one.body[:6]) for one in self.stale}
        assert all(one.is_redelivered for one in received if int(one.body[:6]) in stale)
        self.vhost.close()
        with opened(path) as vhost:
            again = take_all(vhost.queue("jobs"))
            assert set(numbers(again)) == there
            assert len(vhost.persistent) == sum(len(one.body) > 64 for one in again), "bodies are left over"


@pytest.mark.parametrize("kind", ["backing", "index"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("seeds", "most"), [(1, 4), slow(2, 12)])
def test_queue_that_fails_loses_nothing_confirmed(kind, after, seeds, most, tmp_path):
    for seed in range(seeds):
        whole = Faults()
        history = History(tmp_path / f"whole{seed}", kind, whole, seed)
        history.run(40)
        calls, failures = whole.calls, 0
        history.vhost.abandon()
        for fail_at in random.Random(seed).sample(range(calls), min(most, calls)):
            path = tmp_path / f"{seed}-{fail_at}"
            history = History(path, kind, Faults(fail_at, after), seed)
            history.run(40)
            failures += len(history.errors)
            assert all("queue 'jobs' of vhost '/'" in text and "LookupError: a bug" in text for text in history.errors)
            history.check(path)
        assert failures


def test_queue_that_fails_returns_its_unacked_messages(tmp_path, monkeypatch):
    vhost = opened(tmp_path)
    jobs = vhost.queue("jobs")
    for number in range(3):
        jobs.publish(body(number))
    vhost.flush()
    with jobs.consume() as consumer:
        first, second = next(consumer), next(consumer)
        monkeypatch.setattr(jobs.backing, "fetch", lambda: {}["a bug"])
        with pytest.raises(QueueFailed, match=r"queue 'jobs' of vhost '/': .* KeyError: 'a bug'. The queue was read again"):
            next(consumer)
        first.ack()
        second.nack(requeue=False)
        assert [int(next(consumer).body) for _ in range(3)] == [0, 1, 2]
        assert (jobs.unacked, len(consumer.unacked)) == (3, 3)
        first.ack()
        assert jobs.unacked == 3
    vhost.close()
    with opened(tmp_path) as vhost:
        assert len(vhost.queue("jobs")) == 3


def test_failed_plugin_is_named_with_its_distribution(tmp_path):
    faults = Faults()
    with opened(tmp_path, with_faults("index", faults)) as vhost:
        jobs = vhost.queue("jobs")
        jobs.publish(body(0))
        index = jobs.backing._index._below
        index._append = lambda *_: 1 / 0
        with pytest.raises(
            QueueFailed, match=r"the queue index 'v2' \(msgstore-queue-index-v2\) has failed: ZeroDivisionError"
        ):
            vhost.flush()


def test_consumer_that_waits_goes_on_after_failure(tmp_path, monkeypatch):
    vhost, found = opened(tmp_path), []
    jobs = vhost.queue("jobs")
    with jobs.consume() as consumer:
        thread = threading.Thread(target=lambda: found.append(next(consumer).body))
        thread.start()
        monkeypatch.setattr(jobs, "_add_body", lambda body: 1 / 0)
        with pytest.raises(QueueFailed):
            jobs.publish(b"1")
        jobs.publish(b"2")
        thread.join(30)
    vhost.close()
    assert found == [b"2"]


def test_delayed_and_dead_letters_survive_a_failure(tmp_path, monkeypatch):
    """Those whose target fails before it has confirmed them are published again, or ready again."""
    with opened(tmp_path) as vhost:
        jobs = vhost.queue("jobs", dead_letter="failed")
        jobs.publish(b"later", delay=3600)
        jobs.publish(b"bad")
        vhost.flush()
        jobs.receive().nack(requeue=False)
        monkeypatch.setattr(vhost.queue("failed").backing, "write", lambda: 1 / 0)
        with pytest.raises(QueueFailed, match="queue 'failed'"):
            vhost.flush()
        assert jobs.receive(block=False).body == b"bad"
        holder = vhost.queue("jobs.delayed")
        monkeypatch.setattr(holder.backing, "set_memory_target", lambda _: 1 / 0)
        with pytest.raises(QueueFailed, match=r"queue 'jobs\.delayed'"):
            holder.set_memory_target(1)
        assert len(jobs.delays) == 1
        assert holder.unacked == 1


def test_queue_that_cannot_be_opened_again_waits(tmp_path, monkeypatch):
    faults = Faults()
    with opened(tmp_path, with_faults("backing", faults)) as vhost:
        jobs, others = vhost.queue("jobs"), vhost.queue("others")
        jobs.publish(b"1")
        vhost.flush()
        monkeypatch.setattr(jobs.backing._below, "fetch", lambda: 1 / 0)
        monkeypatch.setattr(FailingBacking, "load_factory", lambda _: lambda context: 1 / 0)
        with pytest.raises(QueueFailed, match=r"cannot be opened again: division by zero.*call vhost.queue\('jobs'\)"):
            jobs.receive()
        with pytest.raises(QueueFailed):
            jobs.publish(b"2")
        with pytest.raises(QueueFailed, match="cannot be opened"):
            vhost.queue("jobs")
        others.publish(b"3")
        vhost.flush()
        monkeypatch.undo()
        assert vhost.queue("jobs").receive().body == b"1"


def test_user_mistakes_do_not_restart_a_queue(vhost):
    jobs = vhost.queue("jobs")
    jobs.publish(b"1")
    received = jobs.receive()
    with pytest.raises(ValueError, match="could not convert"):
        received.nack(delay="soon")
    with pytest.raises(RuntimeError, match="exclusive"), jobs.consume(), jobs.consume(exclusive=True):
        pass
    assert (jobs.generation, jobs.unacked) == (0, 1)


# -- a store --------------------------------------------------------------------------------------------------------------


def break_store(vhost):
    vhost.persistent._store.abandon()


def fail_store(vhost):
    """Let the store of persistent messages fail, and a publish see it."""
    break_store(vhost)
    with pytest.raises(StoreFailed, match="the message store has failed"):
        vhost.queue("jobs").publish(body(99, LARGE))


def test_store_that_fails_restarts_its_vhost_alone(tmp_path):
    lost, confirmed = [], []
    with opened(tmp_path, name="other") as other, opened(tmp_path) as vhost:
        jobs, small = vhost.queue("jobs"), vhost.queue("small", durable=False)
        others = other.queue("jobs")
        others.publish(body(0, LARGE))
        jobs.publish(body(0, LARGE))
        jobs.publish(body(1))
        vhost.flush()
        small.publish(b"ends with the vhost")
        received = jobs.receive()
        jobs.publish(body(2, LARGE), on_confirm=lambda: confirmed.append(2), on_lost=lost.append)
        break_store(vhost)
        with pytest.raises(StoreFailed):
            vhost.flush()
        assert vhost.is_alive
        assert (len(lost), confirmed) == (1, [])
        assert isinstance(lost[0], StoreFailed)
        received.ack()
        assert numbers(take_all(jobs)) == [0, 1]
        assert len(small) == 0
        small.publish(b"again")
        vhost.flush()
        assert (others.generation, other.is_alive, len(others)) == (0, True, 1)


def test_store_that_fails_loses_nothing_confirmed(tmp_path):
    """At any point of a history the store ends. Its next use restarts the vhost."""
    restarts = 0
    for seed in range(10):
        history = History(tmp_path / str(seed), "backing", Faults(), seed)
        history.run(4 * seed)
        break_store(history.vhost)
        history.run(40)
        restarts += history.jobs.generation
        history.check(tmp_path / str(seed))
    assert restarts == 10


def test_failure_in_a_callback_restarts_after_the_flush(tmp_path):
    with opened(tmp_path) as vhost:
        jobs, errors = vhost.queue("jobs"), []

        def publish_more():
            break_store(vhost)
            try:
                jobs.publish(body(1, LARGE))
            except StoreFailed as error:
                errors.append(error)

        jobs.publish(body(0), on_confirm=publish_more)
        vhost.flush()
        assert (len(errors), jobs.generation, numbers(take_all(jobs))) == (1, 1, [0])


def test_too_many_restarts_bring_the_vhost_down(tmp_path):
    """Three in five minutes are tolerated, also after others that are longer ago. Another vhost does not notice."""
    now = [0.0]
    with opened(tmp_path, name="other") as other, opened(tmp_path, clock=lambda: now[0]) as vhost:
        jobs = vhost.queue("jobs")
        jobs.publish(body(0, LARGE))
        vhost.flush()
        for now[0] in (0.0, 200.0, 299.0, 300.5):
            fail_store(vhost)
            assert vhost.is_alive
        now[0] = 301.0
        fail_store(vhost)
        assert not vhost.is_alive
        for call in (
            vhost.flush,
            jobs.receive,
            lambda: jobs.publish(b""),
            lambda: vhost.queue("new"),
            lambda: len(jobs.browse()),
        ):
            with pytest.raises(VHostDown, match=r"is down: .* the 4th failure in 5 minutes.*call vhost.start\(\)"):
                call()
        other.queue("jobs").publish(body(1, LARGE))
        other.flush()
        vhost.start()
        assert vhost.is_alive
        assert numbers(take_all(jobs)) == [0]
        fail_store(vhost)
        assert vhost.is_alive


def test_restart_that_fails_is_not_repeated(tmp_path):
    broken = []

    def open_store(*given, **named):
        if broken:
            raise MsgStoreError("no such plugin")
        return msgstore.open_store(*given, **named)

    vhost = opened(tmp_path, open_store=open_store)
    vhost.queue("jobs").publish(body(0, LARGE))
    vhost.flush()
    broken.append(True)
    fail_store(vhost)
    with pytest.raises(VHostDown, match="could not be opened again: no such plugin"):
        vhost.flush()
    with pytest.raises(VHostDown, match="no such plugin"):
        vhost.start()
    broken.clear()
    vhost.start()
    assert len(vhost.queue("jobs")) == 1
    broken.append(True)
    fail_store(vhost)
    vhost.close()
    with pytest.raises(StoreClosed):
        vhost.start()
    with opened(tmp_path) as vhost:
        assert len(vhost.queue("jobs")) == 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
def test_restart_strategy_stop_sends_sigterm(tmp_path):
    came = []
    usual = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with opened(tmp_path, clock=lambda: 0.0, options={"restart": "stop"}) as vhost:
            vhost.queue("jobs")
            for _ in range(3):
                fail_store(vhost)
            assert came == []
            fail_store(vhost)
            assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, usual)
