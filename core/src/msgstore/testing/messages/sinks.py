"""Tests of every sink of messages that writes files."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import attrs
import pytest

from msgstore.contract import STATES, Capability, MessageBatch, MsgStoreError, QueueName, SinkContext, StoreError
from msgstore.jobs.messages.checked import CheckedSink
from msgstore.testing.faults import fail_syncs, file_size_limit
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.probes import open_files, tree
from msgstore.testing.subjects import Subject

_TEXTS = (
    "", ".", "..", "../up", "a/b", "a%2Fb", "a_b", "A_B", "\ud800", "%", "%41", "a\\b", "a.", "a ", "\udcff\0", "\n", "~",
    "con", "a:b",
    "e\u0301", "\u00e9",
    *(character * (limit // size) for limit in (255, 256) for character, size in (("n", 1), ("é", 2), ("€", 3), ("%", 3))),
    *("é" * 86, "é" * 200, "€" * 254, "😀" * 64, "%" * 200, "/" * 100, "." * 200, " " * 255, "n" * 251 + ".tmp", "n" * 5000),
)  # fmt: skip
NAMES = (
    QueueName("kit"), QueueName("kit", "/", "a", 0), QueueName("kit", "v", "a/b"), QueueName("../kit", "..", "a", 2**31 - 1),
    QueueName("kit", "€" * 100, "a"), QueueName("kit", "", ""), *(QueueName("kit", queue=text) for text in _TEXTS),
)  # fmt: skip
"""Names of queues as some systems have them, also such as have more bytes than characters as UTF-8 or ``%XX``. What a name is
as a path must not matter."""
ALIKE = [QueueName("kit", "v", text) for text in ("a/b", "a_b", "a%2Fb", "a b", "A/B", "a\0b", "n" * 300, "n" * 301)] + [
    QueueName("kit", *names) for by in "./-_%" for names in (("a", f"b{by}c"), (f"a{by}b", "c"))
]
"""Names of queues that are the same once something is left out or replaced, or parts of the name are joined."""
BODIES = (b"", b"text", bytes(range(256)), b"\xff" * 5000, "ümlaut\n".encode(), b"\0", b"n" * 125, b"n" * 253, b"n" * 65_533)

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


def full_batch(batch: MessageBatch) -> MessageBatch:
    """Return a batch of an even length with all states, and more columns, which have a value in each second row."""
    values = {
        "sequences": 1, "ids": "1f" * 16, "exchanges": "e", "routing_keys": ["k"], "properties": {"p": 1}, "verified": True,
        "headers": {"h": [None]}, "timestamps_ms": 1_700_000_000_000, "expiries_ms": 1_700_000_000_001,
    }  # fmt: skip
    columns: dict[str, Any] = {name: [value, None] * (len(batch) // 2) for name, value in values.items()}
    return attrs.evolve(batch, states=[STATES[row % len(STATES)] for row in range(len(batch))], **columns)


Synced = dict[int, int | set[str]]


class SinkTests(KitTests):
    kinds = ("sink",)

    @pytest.fixture
    def place(self, subject: Subject, tmp_path: Path) -> Path:
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        (tmp_path / "one").mkdir()
        return tmp_path / "one" / "content"

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> Synced:
        """Inode to the size, or the names in it, with which Python has last synced it."""
        sizes: Synced = {}

        def noted(call: Any, file: Any) -> None:
            call(file)
            status = os.fstat(file if isinstance(file, int) else file.fileno())
            sizes[status.st_ino] = {entry.name for entry in os.scandir(file)} if S_ISDIR(status.st_mode) else status.st_size

        for name in {"fsync", "fdatasync"} & {*dir(os)}:
            monkeypatch.setattr(os, name, partial(noted, getattr(os, name)))
        return sizes

    @pytest.mark.parametrize("limits", [(), (0, 64, 4096)], ids=["", "and by a finish that fails"])
    def test_an_interrupted_conversion_has_the_same_result(
        self, subject: Subject, place: Path, tmp_path: Path, limits: tuple[int, ...]
    ) -> None:
        """A failure means that messages are lost or written twice when a conversion continues after a crash, at a flush or at
        the end: what was written after the last flush is discarded, other messages, too, and ``finish`` can be called again,
        also if it has failed because no file could grow. Or that a later flush changes the token of an earlier one, or that a
        flush without a write gives a token that leads elsewhere than the one before."""
        parts = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole, tokens = self._sink(subject, place, None), []
        for part in parts:
            whole.write(accepted(whole, part))
            flushed = whole.flush()
            tokens.append((flushed, json.dumps(flushed)))
        whole.finish()
        whole.close()
        assert all(json.dumps(flushed) == was for flushed, was in tokens), "a flush changes the token of the one before"
        (tmp_path / "two").mkdir()
        other, token = tmp_path / "two" / "content", None
        for number, part in enumerate(parts):
            for interrupted in (True, False):
                sink = self._sink(subject, other, token)
                for batch in (part, sample_batch("a", 60, 20), sample_batch("c", 0, 20)) if interrupted else (part,):
                    sink.write(accepted(sink, batch))
                if interrupted:
                    sink.close()
                    sink = self._sink(subject, other, token)  # it goes on, has nothing to write, and is interrupted again
                    token = json.loads(json.dumps(sink.flush()))
                else:
                    token = json.loads(json.dumps(sink.flush()))
                    for limit in limits if part is parts[-1] else ():
                        with file_size_limit(limit), suppress(MsgStoreError, OSError):
                            sink.finish()
                        sink.close()
                        sink = self._sink(subject, other, token)
                    if part is parts[-1]:
                        sink.finish()
                sink.close()
            assert token is not None, number
        check_same(other, place)
        for _ in range(2):
            complete(self._sink(subject, other, token))
        check_same(other, place)

    def test_parts_are_joined_in_their_order(self, subject: Subject, place: Path, tmp_path: Path, synced: Synced) -> None:
        """A failure means that a conversion on several machines loses messages, or changes their order, which is that of the
        call; or that a flush does not sync what was joined. Or that a part that is not complete, or not there, raises
        something else than StoreError or OSError; or that a part without ``finish`` is joined otherwise than a finished one."""
        if Capability.JOINS not in subject.descriptor.capabilities:
            skip_without("joined parts")
        (tmp_path / "parts").mkdir()
        batches = [
            sample_batch("a", 0, 20), sample_batch("b", 0, 20), sample_batch("a", 20, 20),
            *(sample_batch("b", number, 1) for number in range(20, 26)),
        ]  # fmt: skip
        whole, parts = self._sink(subject, place, None), []
        for number, batch in enumerate(batches):
            parts.append(str(tmp_path / "parts" / str(12 - number)))
            part = self._sink(subject, Path(parts[-1]), None)
            for sink in (part, whole):
                sink.write(accepted(sink, batch))
                sink.flush()
            part.finish()
            part.close()
        joined = self._sink(subject, tmp_path / "joined", None)
        joined.join(parts[:1])
        joined.join([])
        joined.join(tuple(parts[1:]))
        joined.flush()
        check_synced(tmp_path / "joined", synced)
        complete(joined, whole)
        check_same(tmp_path / "joined", place)
        self._check_unfinished(subject, tmp_path)

    def _check_unfinished(self, subject: Subject, tmp_path: Path) -> None:
        """A part without ``finish`` is refused, or joined as if it were finished; one that is not there is refused."""
        for number, count in enumerate((0, 1, 20)):
            results = []
            for name in ("finished", "unfinished"):
                part = self._sink(subject, tmp_path / f"{name}{number}", None)
                if count:
                    part.write(accepted(part, sample_batch("a", 0, count)))
                part.flush()
                if name == "finished":
                    part.finish()
                part.close()
                results.append(joined := tmp_path / f"joined-{name}{number}")
                with closing(self._sink(subject, joined, None)) as sink:
                    try:
                        sink.join([str(tmp_path / f"{name}{number}")])
                    except (StoreError, OSError):
                        assert name == "unfinished", "a part that is complete is refused"
                        break
                    sink.flush()
                    sink.finish()
            else:
                check_same(*results[::-1])
        with closing(self._sink(subject, tmp_path / "joined-absent", None)) as sink, pytest.raises((StoreError, OSError)):
            sink.join([str(tmp_path / "absent")])

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

    def test_a_flush_syncs_each_file(self, subject: Subject, place: Path, synced: Synced) -> None:
        """A failure means that a power loss takes away what a token promises: a file with bytes that no sync has covered, or a
        name in a directory that was not synced since, also at a later flush. Only for a sink that syncs with ``os.fsync`` or
        ``os.fdatasync``."""
        with closing(self._sink(subject, place, None)) as sink:
            for queue in "ab":
                sink.write(accepted(sink, sample_batch(queue, 0, 20)))
                sink.flush()
                check_synced(place, synced)

    def test_what_is_refused_is_not_written(self, subject: Subject, place: Path) -> None:
        """A failure means that ``refused`` writes, that it does not say the same twice, or that it gives positions instead of
        rows: the counts of a conversion would be wrong."""
        batch = attrs.evolve(sample_batch("a", 0, 30), positions=range(900, 930))
        with closing(self._sink(subject, place, None)) as sink:
            before = tree(place.parent)
            first = list(sink.refused(batch))
            assert list(sink.refused(batch)) == first
            assert all(reason for _, reason in first)
            assert tree(place.parent) == before, "refused has written something"

    def test_any_message_is_written_or_refused(self, subject: Subject, place: Path, tmp_path: Path) -> None:
        """A failure means that a conversion ends with an error at a message without a time, with a value that others have
        not, or in another state than ``ready``; or at a queue whose name is not one of a file, or that such a name makes a
        file beside the destination. Or that ``close`` leaves a file open."""
        batch, were_open = sample_batch("a", 0, 10), open_files()
        plain = attrs.evolve(batch, timestamps_ms=None, headers=None)
        sink = self._sink(subject, place, None)
        for name in NAMES:
            for number, part in enumerate((plain, batch, full_batch(batch))):
                part = attrs.evolve(part, name=name, positions=range(10 * number, 10 * number + 10))
                if len(taken := accepted(sink, part)):
                    sink.write(taken)
            sink.flush()
        complete(sink)
        assert open_files() <= were_open, "close leaves a file open"
        others = [path for path in tmp_path.rglob("*") if path != place.parent and not str(path).startswith(str(place))]
        assert not others, f"it writes beside its destination: {others[0]}"

    def test_no_queue_replaces_another(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that the messages of a queue are lost if another one has a name that is the same as a path, once
        something in it is left out or replaced: the second is written over the first."""
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        whole, refused = self._written(subject, tmp_path / "whole", ALIKE)
        for number, name in enumerate(ALIKE):
            without, _ = self._written(subject, tmp_path / str(number), [other for other in ALIKE if other != name])
            assert name in refused or without != whole, f"the message of the queue {name} is not there beside those of others"

    def _written(self, subject: Subject, directory: Path, names: Sequence[QueueName]) -> tuple[object, list[QueueName]]:
        """Write a message of each queue. Return what is there then, and the queues whose message was refused."""
        directory.mkdir()
        sink, refused = self._sink(subject, directory / "content", None), []
        for name in names:
            batch = attrs.evolve(sample_batch("a", 0, 1, repr(name).encode()), name=name)
            if len(accepted(sink, batch)):
                sink.write(batch)
            else:
                refused.append(name)
        complete(sink)
        return contents(directory / "content"), refused

    def test_what_is_lost_is_an_error(self, subject: Subject, place: Path) -> None:
        """A failure means that a conversion that continues goes on without what was written before, or with zeros in its
        place; or that nothing is said if the disk is full."""
        with closing(self._sink(subject, place, None)) as sink:
            sink.write(accepted(sink, sample_batch("a", 0, 20)))
            token = json.loads(json.dumps(sink.flush()))
        shutil.rmtree(place.parent)
        place.parent.mkdir()
        with pytest.raises((StoreError, OSError)):
            self._sink(subject, place, token).close()
        sink = self._sink(subject, place, None)
        with file_size_limit(64), suppress(StoreError, OSError):
            sink.write(accepted(sink, sample_batch("a", 0, 1, bytes(range(11, 256)))))
            pytest.fail(f"no file can have more than 64 bytes, and flush returns {sink.flush()}")
        with suppress(StoreError, OSError):
            sink.close()

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
        return CheckedSink(subject.make(context), subject.catalogue, subject.descriptor, target)


def complete(*sinks: Any) -> None:
    for sink in sinks:
        sink.flush()
        sink.finish()
        sink.close()


def accepted(sink: Any, batch: MessageBatch) -> MessageBatch:
    refused = dict(sink.refused(batch))
    return batch.take([row for row in range(len(batch)) if row not in refused])


def check_same(place: Path, whole: Path) -> None:
    found, wanted = contents(place), contents(whole)
    others = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    others = [place.name if name == "." else name for name in others]  # the destination is one file
    assert not others, f"without an interruption, or a join, there is another content of {', '.join(others[:9])}"


def check_synced(place: Path, synced: Synced) -> None:
    """Fail if a file with bytes, or a directory that the sink made, was not synced since it has its size, or its names."""
    for path in [place, *place.rglob("*")] if synced and place.exists() else ():
        status = path.stat()
        if path.is_dir():
            is_synced = synced.get(status.st_ino) == {entry.name for entry in path.iterdir()}
            assert is_synced, f"flush does not sync the directory {path.relative_to(place.parent)} as it is"
        elif status.st_size:
            size, what = synced.get(status.st_ino), path.relative_to(place.parent)
            assert size == status.st_size, f"flush returns, and of {what} {size or 0} bytes of {status.st_size} are synced"


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
