"""Tests of every sink of messages that writes files."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import Capability, MessageBatch, QueueName, SinkContext
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.sources import tree
from msgstore.testing.subjects import Subject

BODIES = (b"", b"text", bytes(range(256)), b"\xff" * 5000, "ümlaut\n".encode(), b"\0")


def sample_batch(queue: str, first: int, count: int) -> MessageBatch:
    """Return messages of one queue, with bodies of many kinds."""
    numbers = range(first, first + count)
    return MessageBatch(
        name=QueueName("kit", queue=queue),
        bodies=[BODIES[number % len(BODIES)] + b"%d" % number for number in numbers],
        positions=numbers,
        states=["ready"] * count,
        files=["kit"] * count,
        offsets=[100 * number for number in numbers],
        sizes=[100] * count,
        timestamps_ms=[1_700_000_000_000 + number for number in numbers],
        headers=[{"number": str(number)} for number in numbers],
    )


class SinkTests(KitTests):
    kinds = ("sink",)

    @pytest.fixture
    def place(self, subject: Subject, tmp_path: Path) -> Path:
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        (tmp_path / "one").mkdir()
        return tmp_path / "one" / "content"

    def test_an_interrupted_conversion_has_the_same_result(self, subject: Subject, place: Path, tmp_path: Path) -> None:
        """A failure means that messages are lost or written twice when a conversion continues after a crash, at a flush or at
        the end: what was written after the last flush is discarded, and ``finish`` can be called again."""
        parts = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole = self._sink(subject, place, None)
        for part in parts:
            whole.write(accepted(whole, part))
            whole.flush()
        whole.finish()
        whole.close()
        (tmp_path / "two").mkdir()
        other, token = tmp_path / "two" / "content", None
        for number, part in enumerate(parts):
            for interrupted in (True, False):
                sink = self._sink(subject, other, token)
                sink.write(accepted(sink, part))
                if not interrupted:
                    token = json.loads(json.dumps(sink.flush()))
                sink.close()
            assert token is not None, number
        for _ in range(2):
            sink = self._sink(subject, other, token)
            sink.flush()
            sink.finish()
            sink.close()
        assert contents(other) == contents(place)

    def test_parts_are_joined_in_their_order(self, subject: Subject, place: Path, tmp_path: Path) -> None:
        """A failure means that a conversion on several machines loses messages, or changes their order."""
        if Capability.JOINS not in subject.descriptor.capabilities:
            skip_without("joined parts")
        (tmp_path / "parts").mkdir()
        batches = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole, parts = self._sink(subject, place, None), []
        for number, batch in enumerate(batches):
            part = self._sink(subject, tmp_path / "parts" / str(number), None)
            parts.append(str(tmp_path / "parts" / str(number)))
            for sink in (part, whole):
                sink.write(accepted(sink, batch))
                sink.flush()
            part.finish()
            part.close()
        joined = self._sink(subject, tmp_path / "joined", None)
        joined.join(parts[:1])
        joined.join(parts[1:])
        for sink in (joined, whole):
            sink.flush()
            sink.finish()
            sink.close()
        assert contents(tmp_path / "joined") == contents(place)

    def test_what_is_refused_is_not_written(self, subject: Subject, place: Path) -> None:
        """A failure means that ``refused`` writes, or that it does not say the same twice: the counts of a conversion would be
        wrong."""
        batch = sample_batch("a", 0, 30)
        with closing(self._sink(subject, place, None)) as sink:
            before = tree(place.parent)
            first = list(sink.refused(batch))
            assert list(sink.refused(batch)) == first
            assert all(0 <= row < 30 and reason for row, reason in first)
            assert tree(place.parent) == before, "refused has written something"

    def test_nothing_is_a_destination_too(self, subject: Subject, place: Path) -> None:
        """A failure means that a conversion of no messages has no result."""
        sink = self._sink(subject, place, None)
        token = sink.flush()
        json.dumps(token)
        sink.finish()
        sink.close()
        assert place.exists()

    def _sink(self, subject: Subject, place: Path, token: Any) -> Any:
        target = str(place.parent / "target")
        context = SinkContext(destination=str(place), target=target, options=subject.made_options, token=token)
        return subject.make(context)


def accepted(sink: Any, batch: MessageBatch) -> MessageBatch:
    refused = dict(sink.refused(batch))
    return batch.take([row for row in range(len(batch)) if row not in refused])


def contents(place: Path) -> dict[str, object]:
    """Return the files, or the messages if they are a store: its files name the time."""
    import msgstore

    if place.is_dir() and (place / "msgstore.json").exists():
        with msgstore.open_store(place, mode="r") as store:
            return {entry.msg_id.hex(): (entry.references, store.stored_body(entry)) for entry in store.entries()}
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files}
