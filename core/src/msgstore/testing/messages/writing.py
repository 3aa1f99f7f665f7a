"""Writing by sinks in tests: messages and names of queues, and comparison of what was written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import STATES, MessageBatch, QueueName, SinkContext
from msgstore.jobs.messages.checked import CheckedSink
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


def odd_batch(batch: MessageBatch) -> MessageBatch:
    """Return a batch of ten messages with values at the limits of their types: numbers of 64 bits, and any text."""
    numbers = [0, 1, -1, 2**31, 2**32, 2**53 + 1, 253_402_300_800_000, 2**63 - 1, -(2**63), None]
    texts = ["", " ", "\0", "\n", "\ud800", "\udcff", "\U0001f4a9", "n" * 70_000, "a b", None]
    values: dict[str, Any] = dict.fromkeys(("timestamps_ms", "expiries_ms", "sequences"), numbers)
    values |= dict.fromkeys(("ids", "exchanges"), texts)
    values["routing_keys"] = [None if text is None else [text, ""] for text in texts]
    values["headers"] = [
        None if text is None else {text: [text, {text: number}]} for text, number in zip(texts, numbers, strict=True)
    ]
    odd: list[Any] = [2**70, 1e308, True, None, [[[{}]]], -0.0, 1]
    values["properties"] = [None, {}, {"": []}, *({"p": value} for value in odd)]
    return attrs.evolve(batch, files=["\udcff"] * len(batch), raw_properties=[b"", None] * (len(batch) // 2), **values)


def complete(*sinks: Any) -> None:
    for sink in sinks:
        sink.flush()
        sink.finish()
        sink.close()


def accepted(sink: Any, batch: MessageBatch) -> MessageBatch:
    refused = dict(sink.refused(batch))
    return batch.take([row for row in range(len(batch)) if row not in refused])


def write(sink: Any, batch: MessageBatch) -> MessageBatch:
    """Write what is not refused, and return it."""
    taken = accepted(sink, batch)
    if len(taken):
        sink.write(taken)
    return taken


@attrs.frozen
class Destination:
    """Place at which sinks of the subject write. Its directory has nothing else."""

    subject: Subject
    path: Path

    @classmethod
    def in_directory(cls, subject: Subject, directory: Path) -> Destination:
        """Make the directory."""
        directory.mkdir()
        return cls(subject, directory / "content")

    def beside(self, name: str) -> Destination:
        """Return another one in the same directory."""
        return Destination(self.subject, self.path.with_name(name))

    def sink(self, token: Any = None) -> Any:
        """Return a sink that begins, or continues where a flush has returned ``token``."""
        subject, target = self.subject, str(self.path.parent / "target")
        context = SinkContext(destination=str(self.path), target=target, options=subject.made_options, token=token)
        return CheckedSink(subject.make(context), subject.catalogue, subject.descriptor, target)

    def convert(self, batches: Iterable[MessageBatch], *, continues: bool = False) -> list[MessageBatch]:
        """Write and flush each batch, then finish. Return what was not refused. ``continues``: with a new sink after each."""
        sink, written = self.sink(), []
        for batch in batches:
            written.append(write(sink, batch))
            token = flushed(sink)
            if continues:
                sink.close()
                sink = self.sink(token)
        complete(sink)
        return written


def flushed(sink: Any) -> Any:
    """Flush. Return the token as a conversion that continues gets it."""
    return json.loads(json.dumps(sink.flush()))


def check_same(place: Path, whole: Path) -> None:
    found, wanted = contents(place), contents(whole)
    others = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    others = [place.name if name == "." else name for name in others]  # the destination is one file
    assert not others, f"without an interruption, or a join, there is another content of {', '.join(others[:9])}"


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
