"""Tests of queue indexes: each alone against a model, and below the backing queue ``variable``."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from msgstore.files import Files
from msgstore.option_values import Backend
from msgstore.testing.faults import FailingFiles, RecordingFiles, StoppingFiles, crash_points, stopped
from msgstore_queues.catalogue import make
from msgstore_queues.contract import Entry, Message, NewEntries, QueueIndex, QueueIndexContext
from msgstore_queues.messages import Terms
from msgstore_queues.testing.history import History
from msgstore_queues.testing.subjects import Subject


class _Log:
    """Steps of an index and its model. The same seed gives the same steps."""

    def __init__(self, subject: Subject, path: Path, files: Files, seed: int) -> None:
        self.subject, self.path, self.files = subject, path, files
        self.random, self._terms = random.Random(seed), Terms(b"/")
        self.live: dict[int, Entry] = {}
        """Entries that are written and not acknowledged."""
        self.late: list[int] = []
        """Positions of transient messages that are not written yet."""
        self.next = 0
        self.calling: tuple[list[Entry], list[int]] = ([], [])
        """Arguments of the call of ``write`` that a crash has interrupted."""

    def start(self) -> None:
        self.path.mkdir()
        self.index = self.open(None)

    def open(self, terms: Mapping[str, Any] | None, files: Files | None = None) -> QueueIndex:
        factory, options = make(
            self.subject.catalogue.index(self.subject.descriptor.name, "a test"),
            Backend(self.subject.descriptor.name, self.subject.options),
            "a test",
        )
        context = QueueIndexContext(
            options=options, directory=self.path, files=files or self.files, terms=terms, is_synced=True
        )
        index: QueueIndex = factory(context)
        return index

    def run(self, steps: int) -> None:
        for _ in range(steps):
            (name,) = self.random.choices(["write", "sync", "reopen", "crash"], [8, 2, 1, 1])
            getattr(self, name)()
            self.check(self.index)

    def run_whole(self) -> None:
        self.start()
        self.run(12)
        self.index.close()

    def write(self) -> None:
        late, new = self._positions()
        entries = [attrs.evolve(self.make_entry(position), is_persistent=False) for position in late]
        entries += [self.make_entry(position) for position in new]
        known = [*self.live, *(entry.position for entry in entries)]
        acks = self.random.sample(known, self.random.choice([0, len(known) // 3, len(known)]))
        self.calling = entries, acks
        write(self.index, entries, acks)
        self.apply(entries, acks)
        self.calling = [], []

    def apply(self, entries: list[Entry], acks: list[int]) -> None:
        self.live |= {entry.position: entry for entry in entries}
        for position in acks:
            del self.live[position]

    def _positions(self) -> tuple[list[int], list[int]]:
        """Return late positions, of transient messages, and new ones."""
        late = [position for position in self.late if self.random.random() < 0.5]
        self.late = [position for position in self.late if position not in late]
        new = range(self.next, self.next + self.random.choice([0, 1, 2, 5, 20]))
        self.next = new.stop
        left_out = [position for position in new if self.random.random() < 0.2]
        self.late += left_out
        return late, [position for position in new if position not in left_out]

    def make_entry(self, position: int, body_size: int | None = None) -> Entry:
        is_persistent, is_shared = self.random.random() < 0.8, self.random.random() < 0.3
        size = self.random.choice([0, 30, 700]) if body_size is None else body_size
        message = Message((position + 1).to_bytes(16, "big"), bytes(size), is_persistent)
        expiry_us = self.random.choice([0, 1_900_000_000_123_456])
        term = None if is_shared else self._terms.encode(message)
        return Entry(position, is_persistent, message.msg_id, len(message.body), expiry_us, term, is_shared)

    def sync(self) -> None:
        self.index.sync()()

    def reopen(self) -> None:
        self.late = []
        self.index = self.open(json.loads(json.dumps(dict(self.index.close()))))
        self._check_recovered()

    def crash(self) -> None:
        self.index.abandon()
        self.live = {position: entry for position, entry in self.live.items() if entry.is_persistent}
        self.late = []
        self.index = self.open(None)
        assert self.index.recovered.body_bytes is not None
        self._check_recovered()

    def _check_recovered(self) -> None:
        recovered = self.index.recovered
        assert recovered.count == len(self.live), "the number of entries"
        assert recovered.body_bytes in (None, sum(entry.body_size for entry in self.live.values()))
        assert recovered.first_position <= min(self.live, default=recovered.next_position)
        assert recovered.next_position > max(self.live, default=-1)

    def check(self, index: QueueIndex) -> None:
        """Compare all entries with the model."""
        found = read_all(index, self.next)
        assert [entry.position for entry in found] == sorted(self.live), "read: not the entries, or not in order"
        for entry in found:
            assert_same(entry, self.live[entry.position])
        shared = Counter(entry.msg_id for entry in self.live.values() if entry.is_shared)
        assert Counter(index.shared()) == shared, "shared: the ids of messages in a message store"

    def check_after_crash(self) -> None:
        """Open what a crash has left. Of the call that it interrupted each entry and each acknowledgement is there, or not."""
        before = {position: entry for position, entry in self.live.items() if entry.is_persistent}
        entries, acks = self.calling
        possible = before | {entry.position: entry for entry in entries if entry.is_persistent}
        index = self.open(None, Files())
        found = read_all(index, self.next)
        positions = {entry.position for entry in found}
        assert before.keys() - set(acks) <= positions, f"lost: {sorted(before.keys() - set(acks) - positions)}"
        assert positions <= possible.keys(), f"acknowledged, transient, or never written: {sorted(positions - possible.keys())}"
        for entry in found:
            assert_same(entry, possible[entry.position])
        assert index.recovered.count == len(found)
        assert index.recovered.next_position > max(positions, default=-1)
        terms = json.loads(json.dumps(dict(index.close())))
        again = self.open(terms, Files())
        assert read_all(again, self.next) == found, "another opening, by the terms, finds other entries"
        again.abandon()


def write(index: QueueIndex, entries: Sequence[Entry], acks: Sequence[int]) -> None:
    """Write entries as a backing queue does: by columns."""
    names = "position", "is_persistent", "msg_id", "body_size", "expiry_us", "term"
    index.write(NewEntries(*([getattr(one, name) for one in entries] for name in names)), acks)


def read_all(index: QueueIndex, stop: int) -> list[Entry]:
    """Return all entries, segment by segment. Each is read without its message, too."""
    found, start = list[Entry](), 0
    while start < stop:
        first, end = index.segment(start)
        assert first <= start < end, "segment: not the one that has the position"
        whole = index.read(start, end)
        assert [entry.position for entry in index.read(start, end, terms=False)] == [entry.position for entry in whole]
        found += whole
        start = end
    return found


def assert_same(found: Entry, written: Entry) -> None:
    """Compare an entry with the one that was written. That of an embedded message may have no id."""
    assert attrs.evolve(found, msg_id=found.msg_id or written.msg_id) == written


class QueueIndexTests:
    """Tests of one queue index. A subclass inherits all of them, and may add more."""

    histories: ClassVar[int] = 10
    crash_histories: ClassVar[int] = 3
    crash_points: ClassVar[int] = 40
    """File operations at which each of those is stopped, at most."""

    @pytest.fixture
    def subject(self) -> Subject:
        pytest.fail(f"{type(self).__name__} has nothing to test: give it a fixture 'subject'")

    @pytest.fixture
    def log(self, subject: Subject, tmp_path: Path) -> Any:
        log = _Log(subject, tmp_path / "index", RecordingFiles(), 1)
        log.start()
        yield log
        log.index.abandon()

    def test_descriptor_is_complete(self, subject: Subject) -> None:
        subject.check_descriptor()

    def test_entries_are_as_their_model_says(self, subject: Subject, tmp_path: Path) -> None:
        for seed in range(self.histories):
            log = _Log(subject, tmp_path / str(seed), RecordingFiles(), seed)
            log.start()
            log.run(40)
            log.index.close()

    def test_crash_at_each_operation_loses_no_entry(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that an entry was lost, or an acknowledged one came back, because of a crash before a file operation
        or inside a write."""
        for seed in range(self.crash_histories):
            whole = RecordingFiles()
            _Log(subject, tmp_path / f"{seed}-whole", whole, seed).run_whole()
            points = crash_points(whole)
            for stop, torn in random.Random(seed).sample(points, min(self.crash_points, len(points))):
                log = _Log(subject, tmp_path / f"{seed}-{stop}-{torn}", StoppingFiles(stop, torn), seed)
                assert stopped(log.run_whole)
                if hasattr(log, "index"):  # else the crash was in its constructor
                    log.index.abandon()
                log.check_after_crash()

    def test_write_that_failed_is_repeated(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that entries of a call that failed are missing, or twice, after the next one, which begins with the
        same."""
        for fail in range(self.crash_points // 2):
            files = FailingFiles()
            log = _Log(subject, tmp_path / str(fail), files, 3)
            log.start()
            log.run(3)
            entries = [log.make_entry(position) for position in range(log.next, log.next + 20)]
            acks = [*log.live][::2]
            files.fail = fail
            try:
                write(log.index, entries, acks)
            except OSError:
                more = [log.make_entry(position) for position in range(log.next + 20, log.next + 30)]
                acks += [entries[3].position]
                entries = [*entries, *more]
                write(log.index, entries, acks)
            files.fail = None
            log.next += 30
            log.apply(entries, acks)
            log.check(log.index)
            log.crash()
            log.check(log.index)
            log.index.close()

    def test_acknowledged_messages_take_no_space(self, log: _Log) -> None:
        """A failure means that more than half of what was written stays, though all of it is acknowledged."""
        written = 0
        for start in range(0, 40_000, 1000):
            entries = [log.make_entry(position, body_size=0) for position in range(start, start + 1000)]
            written += sum(len(entry.term or b"") for entry in entries)
            write(log.index, entries, [])
            write(log.index, [], [entry.position for entry in entries])
        log.index.close()
        left = sum(size for size, _ in Files().list(log.path).values())
        assert left < written / 2, f"{left} of {written} bytes are left"

    def test_delete_leaves_no_file(self, log: _Log) -> None:
        log.run(10)
        log.index.delete()
        assert Files().list(log.path) == {}
        log.index = log.open(None)
        assert log.index.recovered.count == 0

    def test_queue_is_as_its_model_says(self, subject: Subject, tmp_path: Path) -> None:
        for seed in range(self.histories):
            history = History(subject, tmp_path / str(seed), RecordingFiles(), seed)
            history.open()
            history.run(60)
            history.close()

    def test_crash_at_each_operation_loses_no_message(self, subject: Subject, tmp_path: Path) -> None:
        for seed in range(self.crash_histories):
            History.crash_everywhere(subject, tmp_path / str(seed), seed, self.crash_points)
