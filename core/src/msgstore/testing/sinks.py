"""Tests of every sink of messages that writes files."""

from __future__ import annotations

import json
import multiprocessing
import sys
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import Capability, MessageBatch, MsgStoreError, QueueName, SinkContext
from msgstore.testing.faults import fail_syncs
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.sources import tree
from msgstore.testing.subjects import Subject

BODIES = (b"", b"text", bytes(range(256)), b"\xff" * 5000, "ümlaut\n".encode(), b"\0")

NEAR = b"|\0|a|A|a |a\0|a\n|a\r\n|\xfe|\xff".split(b"|")
"""Bodies that differ, and are the same once something is left out."""


def sample_batch(queue: str, first: int, count: int, body: bytes | None = None) -> MessageBatch:
    """Return messages of one queue, with bodies of many kinds, or with this one."""
    numbers = range(first, first + count)
    return MessageBatch(
        name=QueueName("kit", queue=queue),
        bodies=[BODIES[number % len(BODIES)] + b"%d" % number if body is None else body for number in numbers],
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
        the end: what was written after the last flush is discarded, and ``finish`` can be called again. Or that a later flush
        changes the token of an earlier one."""
        parts = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole, tokens = self._sink(subject, place, None), []
        for part in parts:
            whole.write(accepted(whole, part))
            flushed = whole.flush()
            tokens.append((flushed, dict(flushed)))
        whole.finish()
        whole.close()
        assert all(flushed == was for flushed, was in tokens), "a flush changes the token of the one before"
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
            complete(self._sink(subject, other, token))
        assert contents(other) == contents(place)

    def test_parts_are_joined_in_their_order(self, subject: Subject, place: Path, tmp_path: Path) -> None:
        """A failure means that a conversion on several machines loses messages, or changes their order, which is that of the
        call. Or that a part that is not complete, or not there, raises something else than StoreError or OSError."""
        if Capability.JOINS not in subject.descriptor.capabilities:
            skip_without("joined parts")
        (tmp_path / "parts").mkdir()
        batches = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole, parts = self._sink(subject, place, None), []
        for number, batch in enumerate(batches):
            parts.append(str(tmp_path / "parts" / str(9 - number)))
            part = self._sink(subject, Path(parts[-1]), None)
            for sink in (part, whole):
                sink.write(accepted(sink, batch))
                sink.flush()
            part.finish()
            part.close()
        joined = self._sink(subject, tmp_path / "joined", None)
        joined.join(parts[:1])
        joined.join(parts[1:])
        complete(joined, whole)
        assert contents(tmp_path / "joined") == contents(place)
        unfinished = self._sink(subject, tmp_path / "unfinished", None)
        unfinished.write(accepted(unfinished, batches[0]))
        unfinished.flush()
        unfinished.close()
        for number, part in enumerate(("unfinished", "absent")):
            with closing(self._sink(subject, tmp_path / f"joined{number}", None)) as sink, suppress(MsgStoreError, OSError):
                sink.join([str(tmp_path / part)])

    def test_different_bodies_are_written_differently(self, subject: Subject, tmp_path: Path, place: Path) -> None:
        """A failure means that bytes of bodies are left out or changed, such as zeros, or spaces at the end."""
        found: list[tuple[bytes, object]] = []
        for number, body in enumerate(NEAR):
            (tmp_path / str(number)).mkdir()
            target = tmp_path / str(number) / "content"
            sink = self._sink(subject, target, None)
            batch = accepted(sink, sample_batch("a", 0, 1, body))
            sink.write(batch)
            complete(sink)
            made = contents(target, 2**20)
            same = [other for other, there in found if there == made]
            assert not (len(batch) and same), f"{body!r} is written as {same[0]!r} is"
            found += [(body, made)] * len(batch)

    def test_a_flush_waits_for_the_disk(self, subject: Subject, place: Path) -> None:
        """A failure means that a power loss can undo a ``flush``: it succeeds in a process in which every fsync, fdatasync,
        msync and syncfs fails."""
        if sys.platform != "linux":
            skip_without("a system that can fail syncs")

        def run() -> None:
            sink = self._sink(subject, place, None)
            sink.write(accepted(sink, sample_batch("a", 0, 20)))
            if not fail_syncs():
                sys.exit(10)
            with suppress(MsgStoreError, OSError):
                sink.flush()
                sys.exit(11)

        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # other threads do not matter here
            child = multiprocessing.get_context("fork").Process(target=run)
            child.start()
        child.join(60)
        child.kill()
        if child.exitcode == 10:
            skip_without("a system that can fail syncs")
        assert child.exitcode != 11, "flush returns although no sync succeeds"
        assert child.exitcode == 0, "it fails in a process of its own"

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


def complete(*sinks: Any) -> None:
    for sink in sinks:
        sink.flush()
        sink.finish()
        sink.close()


def accepted(sink: Any, batch: MessageBatch) -> MessageBatch:
    refused = dict(sink.refused(batch))
    return batch.take([row for row in range(len(batch)) if row not in refused])


def contents(place: Path, size: int = -1) -> dict[str, object]:
    """Return the first bytes of the files, or the messages if they are a store: its files name the time."""
    import msgstore

    if place.is_dir() and (place / "msgstore.json").exists():
        with msgstore.open_store(place, mode="r") as store:
            return {entry.msg_id.hex(): (entry.references, store.stored_body(entry)) for entry in store.entries()}
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    found: dict[str, object] = {}
    for path in files:
        with path.open("rb") as file:
            found[str(path.relative_to(place))] = file.read(size)
    return found
