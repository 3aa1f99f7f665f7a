"""A crash while messages are in several queues, or move between them: fanout, dead letters, retries, delays, keys.

A few points of each history are tested always, all of them with the mark ``crash``.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from msgstore.files import Files
from msgstore.testing.faults import RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore_queues.flusher import Flusher
from msgstore_queues.message import DEATHS
from msgstore_queues.testing.backing_queues import take_all
from msgstore_queues.testing.subjects import Subject, installed_backing_queues
from queues_support import typical_backing_queues
from rabbitmq_files.properties import read_properties
from support import slow

SUBJECTS = [one for one in installed_backing_queues() if one.descriptor.name in ("variable", "priority")]
RETRIES = {"dead_letter": "lost", "max_attempts": 2, "retry_delay": "10s", "deduplicate": True}


@pytest.fixture(params=[pytest.param(3, id="few"), pytest.param(None, id="all", marks=pytest.mark.crash)])
def most(request):
    return request.param


@pytest.fixture(params=[one if one in typical_backing_queues() else slow(one) for one in SUBJECTS], ids=str)
def subject(request):
    return request.param


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves. No thread flushes or publishes by it."""

    class Clock:
        now = 1e9

    monkeypatch.setattr("time.time", lambda: Clock.now)
    monkeypatch.setattr(Flusher, "start", lambda _: None)
    return Clock


def body(number: int) -> bytes:
    return b"%06d" % number + bytes(200 * (number % 2))


def number_of(received) -> int:
    return int(received.body[:6])


def taken(queue):
    found = take_all(queue)
    assert all(received.body == body(number_of(received)) for received in found)
    return found


class History:
    """Steps in a vhost, and what they promised. A subclass has ``run`` and ``check``."""

    queues: tuple[str, ...]
    run: Any
    check: Any
    left: Any

    def __init__(self, subject: Subject, path, files: Files, clock):
        self.subject, self.path, self.files, self.clock = subject, path, files, clock
        self.confirmed, self.begun, self.gone = set(), set(), set()

    def run_whole(self):
        with self.subject.open(self.path, self.files) as vhost:
            self.vhost = vhost
            self.run()

    def check_after_crash(self):
        with self.subject.open(self.path) as vhost:
            self.check(vhost)
            for name in vhost.queues():
                vhost.queue(name).ack(*(received for _, received in self.left if received.queue.name == name))
            for _ in range(3):  # confirms of dead letters acknowledge messages, and the next flush writes that
                vhost.flush()
            assert [name for name in vhost.queues() if vhost.queue(name).unfinished_tasks] == []
            assert len(vhost.persistent) == 0, "a body is in the store, and in no queue"
        with self.subject.open(self.path) as vhost:
            assert len(vhost.persistent) == 0
            assert not any(len(vhost.queue(name, **self.options(name))) for name in self.queues), "acknowledged, and back"

    def options(self, name):
        return self.subject.queue_options(self.path)


def crash_everywhere(history, subject, path, clock, most):
    whole, start = RecordingFiles(), clock.now
    history(subject, path / "whole", whole, clock).run_whole()
    points = crash_points(whole)
    for stop, torn in points if most is None else random.Random(1).sample(points, most):
        clock.now = start
        one = history(subject, path / f"{stop}-{torn}", StoppingFiles(stop, torn), clock)
        assert stopped(one.run_whole)
        try:
            one.check_after_crash()
        except BaseException as error:
            error.add_note(f"stopped at {stop}, torn {torn}")
            raise


class Fanout(History):
    """Small and large messages for three queues. Members of ``begun`` and ``gone`` are pairs of queue and number."""

    queues = ("a", "b", "c")

    def run(self):
        queues = [self.vhost.queue(name, **self.options(name)) for name in self.queues]
        for first in (0, 4, 8):
            for number in range(first, first + 4):
                to = self.queues if number % 4 < 3 else self.queues[:2]
                self.vhost.publish(body(number), to, on_confirm=lambda number=number: self.confirmed.add(number))
            if first != 4:
                self.vhost.flush()
            for count, queue in enumerate(queues):
                acked = [queue.receive() for _ in range(count + 1)]
                pairs = {(queue.name, number_of(one)) for one in acked}
                self.begun |= pairs
                queue.ack(*acked)
                if count == 1:
                    self.vhost.flush()
                    self.gone |= self.begun

    def check(self, vhost):
        self.left = [(name, one) for name in self.queues for one in taken(vhost.queue(name, **self.options(name)))]
        found = Counter((name, number_of(one)) for name, one in self.left)
        owed = {(name, number) for number in self.confirmed for name in self.queues if name != "c" or number % 4 < 3}
        assert owed - self.begun <= found.keys(), "confirmed, and lost"
        assert not self.gone & found.keys(), "acknowledged, and back"
        assert not found or max(found.values()) == 1, "twice in a queue"


class Moves(History):
    """Messages that are delayed, rejected, tried again, and acknowledged at last. Each has a key."""

    queues = ("jobs", "lost")

    def options(self, name):
        return {**super().options(name), **(RETRIES if name == "jobs" else {})}

    def run(self):
        jobs, lost = (self.vhost.queue(name, **self.options(name)) for name in ("jobs", "lost"))
        for number in range(10):
            jobs.publish(
                body(number), key=str(number), delay=5 if number in (3, 4) else 0, properties={"priority": number % 3},
                on_confirm=lambda number=number: self.confirmed.add(number),
            )  # fmt: skip
        self.vhost.flush()
        for _ in range(3):
            for received in (jobs.take() for _ in range(5)):
                if received is not None:
                    self.end(received)
            self.flush()
            self.clock.now += 21
            self.vhost.release_due()
            self.flush()
        for received in taken(lost)[:2]:
            self.ack(received)
        self.flush()
        self.gone |= self.begun

    def flush(self):
        """Confirm what was moved; the second flush writes that it is acknowledged at its old place."""
        self.vhost.flush()
        self.vhost.flush()

    def end(self, received):
        number = number_of(received)
        if number % 4 == 0:
            self.ack(received)
        else:
            received.nack(requeue=number % 4 != 1)

    def ack(self, received):
        self.begun.add(number_of(received))
        received.ack()

    def check(self, vhost):
        jobs, lost = (vhost.queue(name, **self.options(name)) for name in ("jobs", "lost"))
        ready = taken(jobs)
        for number in {number_of(one) for one in ready}:
            jobs.publish(b"a duplicate", key=str(number))
        assert not len(jobs), "the key of a message is not known"
        self.clock.now += 1000
        vhost.release_due()
        self.left = [(one.queue.name, one) for one in (*ready, *taken(jobs), *taken(lost))]
        found = Counter(number_of(one) for _, one in self.left)
        assert self.confirmed - self.begun <= found.keys(), "in no queue"
        assert not self.gone & found.keys(), "acknowledged, and back"
        assert not found or max(found.values()) <= 2, "more often than at its old place and its new one"
        assert all(DEATHS in one.headers for name, one in self.left if name == "lost")


@pytest.mark.parametrize("history", [Fanout, Moves], ids=["fanout", "moves"])
def test_crash_loses_nothing_of_messages_in_several_queues(history, subject, tmp_path, clock, most):
    crash_everywhere(history, subject, tmp_path, clock, most)


def test_history_of_moves_has_all_of_them(subject, tmp_path, clock):
    """Otherwise its crash points show nothing."""
    with subject.open(tmp_path) as vhost:
        moves = Moves(subject, tmp_path, Files(), clock)
        moves.vhost = vhost
        moves.run()
        reasons = set()
        vhost.queue("lost").backing.fold_acks(
            lambda _, message: reasons.add(read_properties(message.raw_properties)[1][DEATHS][0]["reason"])
        )
        assert reasons == {"rejected", "delivery_limit"}
        assert len(moves.gone) >= 3
        assert vhost.queue("jobs").delays is not None


# -- transient messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("subject", [one for one in SUBJECTS if one.descriptor.name == "variable"][:1], ids=str)
def test_transient_messages_leave_memory_and_end_with_the_process(subject, is_clean, tmp_path):
    vhost = subject.open(tmp_path)
    jobs = vhost.queue("jobs")
    jobs.set_memory_target(0)
    for number in range(40):
        jobs.publish(body(number), persistent=number % 10 == 0)
    vhost.flush()
    info = jobs.backing.info()
    assert info["q1"] == info["q4"] == 0, "messages are in memory"
    assert len(vhost.transient) == 20
    first = [jobs.receive() for _ in range(20)]
    assert [number_of(one) for one in first] == list(range(20))
    jobs.ack(*first[1:])
    first[0].nack()
    vhost.flush()
    assert len(vhost.transient) == 10
    if is_clean:
        vhost.close()
    else:
        vhost.abandon()
    with subject.open(tmp_path) as vhost:
        assert [number_of(one) for one in taken(vhost.queue("jobs"))] == [0, 20, 30]
        assert len(vhost.transient) == 0
        assert len(vhost.persistent) == 0
