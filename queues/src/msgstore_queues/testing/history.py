"""Random histories of a queue, and a model that says what the queue owes. The same seed gives the same steps."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from msgstore.files import Files
from msgstore.testing.faults import RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore_queues.contract import Capability
from msgstore_queues.message import Received
from msgstore_queues.testing.subjects import Subject

NAME = "jobs"
_STEPS = {"publish": 9, "take": 7, "ack": 5, "requeue": 2, "flush": 3, "reopen": 1, "set_memory": 1, "purge": 0.3}
"""Methods of :class:`History`, and how often each is chosen."""


class Model:
    """What a queue owes. Messages have numbers, in the order of their publishes."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        """In the order of delivery."""
        self.out: dict[int, Received] = {}
        """Unacked messages."""
        self.priorities: list[int] = []
        """Priority of each message: their number is that of all publishes."""
        self.transient: set[int] = set()
        self.plain: set[int] = set()
        """Messages without properties and without a callback of their confirm."""
        self.confirmed: set[int] = set()
        self.acked: list[int] = []
        """Acknowledged since the last flush."""
        self.gone: set[int] = set()
        """Acknowledged, and flushed since."""
        self.delivered: set[int] = set()

    def ordered(self, numbers: Iterable[int]) -> list[int]:
        """Return messages in the order of delivery."""
        return sorted(numbers, key=lambda number: (-self.priorities[number], number))

    def restart(self, *, is_persistent: bool) -> None:
        """Forget what a clean stop does not keep."""
        left = {*self.ready, *self.out} - self.transient if is_persistent else set[int]()
        self.ready, self.out = self.ordered(left), {}


def body(number: int, size: int) -> bytes:
    return b"%06d" % number + b"x" * size


def number_of(data: bytes) -> int:
    return int(data[:6])


class _Steps:
    """A message store in whose first flush steps of a history are done."""

    def __init__(self, history: History, steps: list[str]) -> None:
        self._history, self._steps = history, steps

    def flush(self) -> None:
        while self._steps:
            getattr(self._history, self._steps.pop())()


class History:
    """Steps of a queue and its model."""

    def __init__(self, subject: Subject, path: Path, files: Files, seed: int) -> None:
        self.subject, self.path, self.files = subject, path, files
        self.random, self.model = random.Random(seed), Model()
        self.is_persistent = subject.has(Capability.PERSISTENT)
        self.keeps_properties = subject.has(Capability.PROPERTIES)
        self.has_priorities = subject.has(Capability.PRIORITIES)

    def run(self, steps: int) -> None:
        """Do some steps, each compared with the model. Caller has opened it."""
        for _ in range(steps):
            (name,) = self.random.choices(list(_STEPS), list(_STEPS.values()))
            try:
                getattr(self, name)()
                self.check()
            except AssertionError:
                self.vhost.abandon()
                raise

    def open(self) -> None:
        self.vhost = self.subject.open(self.path, self.files)
        self.queue = self.vhost.queue(NAME, **self.subject.queue_options(self.path))

    def check(self) -> None:
        """Compare all messages, their number and their bytes."""
        backing: Any = self.queue.backing
        if hasattr(backing, "check"):
            backing.check()
        ready: list[bytes] = []
        backing.fold(lambda _, message: ready.append(message.body))
        assert [number_of(data) for data in ready] == self.model.ready, "fold: not the ready messages, or not in order"
        unacked: list[int] = []
        backing.fold_acks(lambda _, message: unacked.append(number_of(message.body)))
        assert sorted(unacked) == sorted(self.model.out), "fold_acks: not the unacked messages"
        assert (len(backing), backing.unacked) == (len(ready), len(unacked)), "numbers of ready and unacked messages"
        assert backing.body_bytes == sum(map(len, ready)), "bytes of the ready messages"
        is_due = not self.queue.is_changed or self.vhost._flusher._flush_at is not None
        assert is_due, "something has changed, and no flush will write it"

    def check_message(self, number: int, received: Received) -> None:
        """Compare a message that was taken with what was published."""
        assert number_of(received.body) == number, f"message {number} was the next one"
        assert number not in self.model.delivered or received.is_redelivered, f"{number} is not marked as redelivered"
        if self.keeps_properties:
            expected = {} if number in self.model.plain else {"number": number}
            assert received.headers == expected, "the headers are those of another message, or none"
            assert received.message.routing_keys == (NAME.encode(),)

    # -- steps ------------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 9])):
            model, number = self.model, len(self.model.priorities)
            if self.random.random() < 0.4:
                model.priorities.append(0)
                model.plain.add(number)
                model.ready = model.ordered([*model.ready, number])
                self.queue.publish(body(number, self.random.choice([0, 20, 200])))
                continue
            is_persistent, priority = self.random.random() < 0.8, self.random.randrange(2)
            model.priorities.append(priority if self.has_priorities else 0)
            if not is_persistent:
                model.transient.add(number)
            model.ready = model.ordered([*model.ready, number])
            self.queue.publish(
                body(number, self.random.choice([0, 20, 200])),
                headers={"number": number},
                properties={"priority": priority},
                persistent=is_persistent,
                on_confirm=partial(model.confirmed.add, number),
            )

    def take(self) -> None:
        for _ in range(self.random.choice([1, 1, 3, 12])):
            received = self.queue.take()
            if received is None:
                assert not self.model.ready, "no message was taken, and some are ready"
                return
            number = self.model.ready.pop(0)
            self.check_message(number, received)
            self.model.out[number] = received
            self.model.delivered.add(number)

    def ack(self) -> None:
        for number in self._some():
            self.model.acked.append(number)
            self.model.out.pop(number).ack()

    def requeue(self) -> None:
        numbers = self._some()
        returned = [self.model.out.pop(number) for number in numbers]
        self.model.ready = self.model.ordered([*self.model.ready, *numbers])
        self.queue.nack(*returned)

    def _some(self) -> list[int]:
        return self.random.sample(sorted(self.model.out), self.random.randint(0, len(self.model.out)))

    def flush(self) -> None:
        """Flush, perhaps while messages come and go: after the begin of the flush, and before it writes the index."""
        published, acked = len(self.model.priorities), len(self.model.acked)
        vhost: Any = self.vhost
        stores, meanwhile = vhost._stores, self.random.choices(["publish", "take", "ack"], k=self.random.choice([0, 0, 4, 9]))
        vhost._stores = (_Steps(self, meanwhile), *stores)
        try:
            vhost.flush()
        finally:
            vhost._stores = stores
        self._note_flush(published, acked)

    def _note_flush(self, published: int | None = None, acked: int | None = None) -> None:
        """A flush has all of the first ``published`` messages and ``acked`` acknowledgements."""
        model = self.model
        model.confirmed |= {number for number in model.plain if published is None or number < published}
        assert model.confirmed >= set(range(len(model.priorities))[:published]), "a flush confirms all messages before it"
        model.gone |= set(model.acked[:acked])
        model.acked = model.acked[acked:] if acked is not None else []

    def reopen(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.vhost.close()
        self._note_flush()
        self.model.restart(is_persistent=self.is_persistent)

    def set_memory(self) -> None:
        self.queue.set_memory_target(self.random.choice([None, 0, 2, 5]))

    def purge(self) -> None:
        assert self.queue.purge() == len(self.model.ready), "purge: the number of ready messages"
        self.model.acked += self.model.ready
        self.model.ready = []

    def run_whole(self) -> None:
        self.open()
        self.run(25)
        self.close()

    @classmethod
    def crash_everywhere(cls, subject: Subject, path: Path, seed: int, most: int) -> None:
        """Let a crash end a history at up to ``most`` of its file operations, and check what each leaves."""
        whole = RecordingFiles()
        path.mkdir()
        cls(subject, path / "whole", whole, seed).run_whole()
        points = crash_points(whole)
        for stop, torn in random.Random(seed).sample(points, min(most, len(points))):
            history = cls(subject, path / f"{stop}-{torn}", StoppingFiles(stop, torn), seed)
            assert stopped(history.run_whole)
            history.check_after_crash()

    # -- after a crash ----------------------------------------------------------------------------------------------------

    def check_after_crash(self) -> None:
        """Open what a crash has left, and compare it with the model."""
        with self.subject.open(self.path) as vhost:
            found = []
            queue = vhost.queue(NAME, **self.subject.queue_options(self.path))
            while (received := queue.take()) is not None:
                found.append(received)
        model, numbers = self.model, [number_of(received.body) for received in found]
        if not self.is_persistent:
            assert not numbers, "a message has survived: claim the capability persistent"
            return
        assert numbers == model.ordered(set(numbers)), "out of order, or twice"
        for number, received in zip(numbers, found, strict=True):
            self.check_message(number, received)
        owed = model.confirmed - model.transient - model.gone - set(model.acked)
        assert owed <= set(numbers), f"confirmed, and lost: {sorted(owed - set(numbers))}"
        assert not model.gone & set(numbers), f"acknowledged, and back: {sorted(model.gone & set(numbers))}"
        assert not model.transient & set(numbers), "a transient message is back"
