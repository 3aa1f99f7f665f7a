"""Tests of backing queues, each in a queue of a vhost."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from msgstore.contract import MsgStoreError
from msgstore.testing.faults import Crash, FailingFiles, RecordingFiles, StoppingFiles, crash_points
from msgstore_queues.contract import BrowsableQueue, Capability, TransactionalQueue
from msgstore_queues.message import Received
from msgstore_queues.queue import Queue
from msgstore_queues.testing.history import NAME, History, body, number_of
from msgstore_queues.testing.subjects import Subject
from msgstore_queues.vhost import VHost

_SIZES = (0, 200, 20)
"""Bytes of the bodies of messages, beside their numbers: one of them is in a message store."""


class BackingQueueTests:
    """Tests of one backing queue. A subclass inherits all of them, and may add more."""

    histories: ClassVar[int] = 10
    """Random histories without a crash."""
    crash_histories: ClassVar[int] = 3
    crash_points: ClassVar[int] = 40
    """File operations at which each of those is stopped, at most."""

    @pytest.fixture
    def subject(self) -> Subject:
        pytest.fail(f"{type(self).__name__} has nothing to test: give it a fixture 'subject'")

    @pytest.fixture
    def vhost(self, subject: Subject, tmp_path: Path) -> Any:
        vhost = subject.open(tmp_path)
        yield vhost
        vhost.abandon()

    @pytest.fixture
    def queue(self, subject: Subject, vhost: VHost, tmp_path: Path) -> Queue:
        return vhost.queue(NAME, **subject.queue_options(tmp_path))

    def test_descriptor_is_complete(self, subject: Subject) -> None:
        subject.check_descriptor()

    def test_history_is_as_its_model_says(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that a message is missing, twice, in the wrong place, or not marked as redelivered. The same seed
        gives the same steps."""
        for seed in range(self.histories):
            history = History(subject, tmp_path / str(seed), RecordingFiles(), seed)
            history.open()
            history.run(60)
            history.close()

    def test_crash_at_each_operation_loses_nothing(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that a confirmed message was lost, or an acknowledged one came back, because of a crash before a
        file operation or inside a write."""
        for seed in range(self.crash_histories):
            History.crash_everywhere(subject, tmp_path / str(seed), seed, self.crash_points)

    def test_end_of_process_after_each_step_loses_nothing(self, subject: Subject, tmp_path: Path) -> None:
        """As before, for the end of the process between two calls. It is the one test of a crash for a backing queue whose
        files are those of a library."""
        for steps in range(1, self.crash_points, 2):
            history = History(subject, tmp_path / str(steps), RecordingFiles(), steps)
            history.open()
            history.run(steps)
            history.vhost.abandon()
            history.check_after_crash()

    def test_flush_that_failed_is_repeated(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that something of a flush that failed was not in the next one, or was there twice."""
        for fail in range(self.crash_points // 2):
            files, path = FailingFiles(), tmp_path / str(fail)
            vhost = subject.open(path, files)
            queue, confirmed = vhost.queue(NAME, **subject.queue_options(path)), set[int]()
            publish(queue, range(12), confirmed)
            taken = [queue.receive() for _ in range(6)]
            vhost.flush()
            queue.ack(*taken[::2])
            publish(queue, range(12, 24), confirmed)
            files.fail = fail
            try:
                vhost.flush()
            except MsgStoreError:
                assert confirmed == set(range(12)), "a flush that failed has confirmed messages"
            publish(queue, range(24, 26), confirmed)
            queue.ack(*taken[1:4:2])
            files.fail = None
            vhost.flush()
            assert confirmed == set(range(26))
            vhost.abandon()
            if subject.has(Capability.PERSISTENT):
                with subject.open(path) as vhost:
                    assert bodies(vhost.queue(NAME, **subject.queue_options(path))) == [5, *range(6, 26)]

    def test_fold_stops_where_its_call_says(self, queue: Queue) -> None:
        publish(queue, range(20))
        queue.flush()
        seen: list[int] = []

        def see(_: int, message: Any) -> bool:
            seen.append(number_of(message.body))
            return len(seen) == 7

        queue.backing.fold(see)
        assert seen == list(range(7))
        taken = [queue.receive() for _ in range(5)]
        seen.clear()
        queue.backing.fold_acks(lambda _, message: seen.append(number_of(message.body)) or len(seen) == 2)  # type: ignore[func-returns-value]
        assert seen == [0, 1]
        queue.ack(*taken)

    def test_positions_of_fold_are_those_of_deliveries(self, queue: Queue) -> None:
        publish(queue, range(9))
        found: list[int] = []
        queue.backing.fold(lambda position, _: found.append(position))
        assert [queue.receive().position for _ in found] == found
        assert len(set(found)) == 9

    def test_messages_requeued_in_any_order_return_to_their_places(self, queue: Queue) -> None:
        publish(queue, range(20))
        queue.flush()
        for seed in range(4):
            taken = [queue.receive() for _ in range(12)]
            random.Random(seed).shuffle(taken)
            for received in taken:
                queue.nack(received)
        seen = [queue.receive() for _ in range(20)]
        assert [number_of(received.body) for received in seen] == list(range(20))
        assert [received.is_redelivered for received in seen] == [True] * 12 + [False] * 8

    def test_peek_takes_nothing(self, queue: Queue) -> None:
        assert queue.backing.peek() is None
        publish(queue, range(2))
        first = queue.backing.peek()
        assert first is not None
        assert first.body == body(0, _SIZES[0])
        assert (len(queue), queue.unacked) == (2, 0)

    def test_message_published_to_an_empty_queue_is_taken_at_once(self, subject: Subject, tmp_path: Path) -> None:
        vhost = subject.open(tmp_path)
        queue = vhost.queue(NAME, **subject.queue_options(tmp_path))
        with queue.lock:
            deliveries = [queue.backing.publish_delivered(queue.make_message(body(number, 9))) for number in range(3)]
        assert (len(queue), queue.unacked) == (0, 3)
        queue.is_changed = True
        queue.settle([deliveries[1].position])
        vhost.close()
        if subject.has(Capability.PERSISTENT):
            with subject.open(tmp_path) as vhost:
                again = vhost.queue(NAME, **subject.queue_options(tmp_path))
                assert [(number_of(one.body), one.is_redelivered) for one in take_all(again)] == [(0, True), (2, True)]

    def test_purge_leaves_unacked_messages(self, subject: Subject, tmp_path: Path) -> None:
        vhost = subject.open(tmp_path)
        queue = vhost.queue(NAME, **subject.queue_options(tmp_path))
        publish(queue, range(20))
        vhost.flush()
        publish(queue, range(20, 25))
        taken = [queue.receive() for _ in range(3)]
        assert queue.purge() == 22
        assert (len(queue), queue.unacked, queue.backing.body_bytes) == (0, 3, 0)
        publish(queue, [25])
        taken[0].ack()
        vhost.flush()
        vhost.abandon()
        if subject.has(Capability.PERSISTENT):
            with subject.open(tmp_path) as vhost:
                assert bodies(vhost.queue(NAME, **subject.queue_options(tmp_path))) == [1, 2, 25]

    def test_delete_leaves_nothing(self, vhost: VHost, queue: Queue) -> None:
        """A failure means that files of the queue, or bodies in the message store, stay for ever."""
        publish(queue, range(20))
        vhost.flush()
        publish(queue, range(20, 25))
        queue.receive()
        vhost.delete(NAME)
        vhost.flush()
        assert list((vhost.directory / "queues").iterdir()) == []
        assert len(vhost.persistent) == 0

    def test_clean_stop_keeps_counts_and_marks(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that ``terminate`` returns terms by which the next opening is wrong, or that JSON does not have."""
        subject.needs(Capability.PERSISTENT)
        with subject.open(tmp_path) as vhost:
            queue = vhost.queue(NAME, **subject.queue_options(tmp_path))
            publish(queue, range(20))
            taken = [queue.receive() for _ in range(6)]
            queue.ack(*taken[:4])
            in_bytes = queue.backing.body_bytes + sum(len(received.body) for received in taken[4:])
        for _ in range(2):
            with subject.open(tmp_path) as vhost:
                queue = vhost.queue(NAME, **subject.queue_options(tmp_path))
                assert (len(queue), queue.unacked, queue.backing.body_bytes) == (16, 0, in_bytes)
                found = take_all(queue)
                assert [number_of(received.body) for received in found] == list(range(4, 20))
                assert all(received.is_redelivered for received in found[:2])
        with subject.open(tmp_path) as vhost:
            assert all(received.is_redelivered for received in take_all(vhost.queue(NAME)))

    def test_message_not_taken_before_is_not_marked(self, subject: Subject, tmp_path: Path) -> None:
        subject.needs(Capability.PERSISTENT)
        with subject.open(tmp_path) as vhost:
            publish(vhost.queue(NAME, **subject.queue_options(tmp_path)), range(5))
        with subject.open(tmp_path) as vhost:
            assert [received.is_redelivered for received in take_all(vhost.queue(NAME))] == [False] * 5

    def test_expiry_is_kept(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that the time differs by more than a second."""
        subject.needs(Capability.PERSISTENT)
        with subject.open(tmp_path) as vhost:
            queue = vhost.queue(NAME, **subject.queue_options(tmp_path))
            queue.publish(b"1", ttl=1000)
            queue.publish(b"2")
            first = queue.backing.peek()
            assert first is not None
        with subject.open(tmp_path) as vhost:
            found = [received.message.expiry_us for received in take_all(vhost.queue(NAME))]
        assert abs(found[0] - first.expiry_us) <= 1_000_000
        assert found[1] == 0

    def test_queue_that_is_not_durable_ends_with_the_vhost(self, subject: Subject, tmp_path: Path) -> None:
        options = subject.queue_options(tmp_path)
        vhost = subject.open(tmp_path)
        try:
            queue = vhost.queue(NAME, durable=False, **options)
            publish(queue, range(20))
            vhost.flush()
            assert bodies(queue) == list(range(20))
        finally:
            vhost.abandon()
        with subject.open(tmp_path) as vhost:
            assert NAME not in vhost.queues()
            assert len(vhost.queue(NAME, durable=False, **options)) == 0

    def test_higher_priorities_come_first(self, subject: Subject, queue: Queue) -> None:
        subject.needs(Capability.PRIORITIES)
        for number in range(6):
            queue.publish(body(number, 0), properties={"priority": number % 2})
        assert bodies(queue) == [1, 3, 5, 0, 2, 4]

    def test_browse_reads_any_part(self, subject: Subject, queue: Queue) -> None:
        subject.needs(Capability.BROWSE)
        backing = queue.backing
        assert isinstance(backing, BrowsableQueue), "BROWSE is claimed without its method"
        publish(queue, range(15))
        queue.flush()
        publish(queue, range(15, 20))
        taken = [queue.receive() for _ in range(4)]
        queue.nack(taken[2])
        ready = [2, *range(4, 20)]
        for first in range(19):
            for count in (0, 1, 5, 100):
                found = [number_of(message.body) for _, message in backing.browse(first, count)]
                assert found == ready[first : first + count]
        positions = [position for position, _ in backing.browse(0, 100)]
        assert [queue.receive().position for _ in positions] == positions

    def test_transaction_is_whole_or_not_there(self, subject: Subject, tmp_path: Path) -> None:
        subject.needs(Capability.TRANSACTIONS)
        whole = RecordingFiles()
        self._transact(subject, tmp_path / "whole", whole, set()).close()
        for stop, torn in crash_points(whole):
            path, confirmed = tmp_path / f"{stop}-{torn}", set[int]()
            with pytest.raises(Crash):
                self._transact(subject, path, StoppingFiles(stop, torn), confirmed).close()
            with subject.open(path) as vhost:
                found = bodies(vhost.queue(NAME, **subject.queue_options(path)))
            if confirmed:
                assert found in ([0, 1, 2, 3, 4], [1, 3, 4, 5, 6]), "a part of a transaction is on disk"

    def _transact(self, subject: Subject, path: Path, files: RecordingFiles, confirmed: set[int]) -> VHost:
        vhost = subject.open(path, files)
        queue = vhost.queue(NAME, **subject.queue_options(path))
        publish(queue, range(5), confirmed)
        vhost.flush()
        taken = [queue.receive() for _ in range(3)]
        queue.transact([queue.make_message(body(5, 0)), queue.make_message(body(6, 200))], [taken[0], taken[2]])
        assert isinstance(queue.backing, TransactionalQueue), "TRANSACTIONS is claimed without its method"
        assert (len(queue), queue.unacked) == (4, 1)
        vhost.flush()
        return vhost


def publish(queue: Queue, numbers: Any, confirmed: set[int] | None = None) -> None:
    """Publish messages. ``confirmed``: gets their numbers when they are confirmed."""
    for number in numbers:
        on_confirm = None if confirmed is None else partial(confirmed.add, number)
        queue.publish(body(number, _SIZES[number % len(_SIZES)]), on_confirm=on_confirm)


def take_all(queue: Queue) -> list[Received]:
    found = []
    while (received := queue.take()) is not None:
        found.append(received)
    return found


def bodies(queue: Queue) -> list[int]:
    """Take all messages, and return their numbers."""
    return [number_of(received.body) for received in take_all(queue)]
