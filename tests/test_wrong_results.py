"""A source or sink returns what the contract forbids: the command names plugin, method and fault, and exits with 2."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
import pytest

from msgstore.contract import QueueInfo, QueueName, SourceDamage
from msgstore_kestrel_journal.sink import KestrelSink
from msgstore_kestrel_journal.source import KestrelSource
from support import command, json_of, slow

Change = Callable[[Any], Any]


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A queue of three messages for Kestrel."""
    monkeypatch.chdir(tmp_path)
    Path("m.jsonl").write_text('{"queue": "q", "body": "QQ=="}\n' * 3)
    command("convert", "m.jsonl", "journals", "--sink", "kestrel")
    return tmp_path / "journals"


def change(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, changed: Change) -> None:
    usual = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, *given: changed(usual(self, *given)))


class State(StrEnum):
    READY = "ready"


def test_subclasses_of_the_types_are_accepted(messages, monkeypatch):
    change(monkeypatch, KestrelSource, "messages", batch(states=[State.READY] * 3, headers=[OrderedDict(a=1)] * 3))
    for name in ("new.jsonl", "new.parquet"):
        assert "3 messages selected = 3 written" in command("convert", messages, name).stdout


def batch(**columns: Any) -> Change:
    return lambda found: [attrs.evolve(one, **columns) for one in found]


@pytest.mark.parametrize(
    ("method", "changed", "said"),
    [
        ("queues", lambda _: None, "it gives NoneType, not Iterable"),
        ("queues", lambda _: ["q"], "it gives str, not QueueInfo"),
        ("queues", lambda found: [attrs.evolve(one, details={"at": b""}) for one in found], "bytes is not JSON"),
        ("queues", lambda _: [QueueInfo(name=QueueName("x", queue=1))], "the queue of a QueueName is 1"),
        ("queues", lambda _: [QueueInfo(name=QueueName("x", partition=2**31))], "one of the partitions is 2147483648"),
        ("queues", lambda found: [*found, *found], "the queue q is there twice"),
        ("damage", lambda _: None, "it gives NoneType, not Iterable"),
        ("damage", lambda _: [SourceDamage(file=Path("q"), reason="")], "the file of a SourceDamage is PosixPath"),
        ("messages", lambda _: None, "it gives NoneType, not Iterable"),
        ("messages", lambda found: next(found), "it gives MessageBatch, not Iterable"),
        ("messages", lambda _: [{}], "it gives dict, not MessageBatch"),
        ("messages", batch(bodies=["a"] * 3), "one of the bodies is <class 'str'>, not bytes"),
        ("messages", batch(positions=[0, 1]), "the columns of a batch have different lengths: {'bodies': 3, 'positions': 2"),
        ("messages", batch(ids=["a"]), "the columns of a batch have different lengths"),
        ("messages", batch(positions=[0, 2, 1]), "positions from 0 to 1 do not grow"),
        ("messages", batch(positions=[-1, 0, 1]), "begin below 0"),
        ("messages", lambda found: [one := next(found), one], "begin below 3"),
        ("messages", batch(states=["ready", "redy", "ready"]), "there is no state or certainty 'redy'"),
        ("messages", batch(timestamps_ms=[1.5] * 3), "one of the timestamps_ms is 1.5, of the type float, not int"),
        ("messages", batch(properties=[{"at": b""}] * 3), "bytes is not JSON serializable"),
        ("messages", batch(routing_keys=["key"] * 3), "one of the routing_keys is 'key', of the type str, not list"),
        ("messages", batch(routing_keys=[["key"], None, [b"key"]]), "one of the routing_keys has b'key', of the type bytes"),
        ("messages", batch(timestamps_ms=[1, None, 2**63]), "one of the timestamps_ms is 9223372036854775808, which"),
        ("messages", batch(expiries_ms=[-(2**63) - 1, None, 0]), "one of the expiries_ms is -9223372036854775809"),
        ("messages", batch(positions=[0, 1, 2**63]), "one of the positions is 9223372036854775808, which is no number of 64"),
        ("messages", batch(ids=["a", "b", 3]), "one of the ids is 3, of the type int, not str"),
        ("messages", batch(name=QueueName("x", queue="x")), "it yields messages of x, and was asked for q"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [slow("queues"), slow("messages"), "convert"])
def test_result_of_a_source_is_checked(verb, method, changed, said, messages, monkeypatch):
    change(monkeypatch, KestrelSource, method, changed)
    done = command(verb, messages, *(["new.parquet"] if verb == "convert" else ()), code=2)
    error = " ".join(done.stderr.split())
    assert f"{messages}: the source 'kestrel' of msgstore-kestrel-journal" in error
    assert f"failed in {method}: " in error
    assert said in error
    assert not Path("new.parquet").exists()


@pytest.mark.parametrize(
    ("method", "changed", "said"),
    [
        ("refused", lambda _: None, "it gives NoneType, not Iterable"),
        ("refused", lambda _: [0], "cannot unpack"),
        ("refused", lambda _: [(3, "why")], "it refuses the row 3 of 3 messages"),
        ("write", lambda _: None, "it gives NoneType, not Iterable"),
        ("write", lambda _: [(0, None)], "with the reason None"),
        ("flush", lambda _: None, "it gives NoneType, not Mapping"),
        ("flush", lambda _: {"place": Path()}, "is not JSON serializable"),
        ("finish", lambda _: 1 / 0, "division by zero"),
    ],
)
def test_result_of_a_sink_is_checked(method, changed, said, messages, monkeypatch):
    change(monkeypatch, KestrelSink, method, changed)
    error = " ".join(command("convert", "m.jsonl", "new", "--sink", "kestrel", code=2).stderr.split())
    assert "msgstore: new: the sink 'kestrel' of msgstore-kestrel-journal" in error
    assert f"failed in {method}: " in error
    assert said in error
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("detected", "said"),
    [
        (lambda path: path.foo, "has no attribute 'foo'"),
        (lambda path: True, "bool, not a Candidate"),
        (open, "the source 'kestrel' cannot examine it: store: Is a directory"),
    ],
)
def test_source_that_cannot_detect_stops_no_other(detected, said, messages, monkeypatch):
    command("convert", "m.jsonl", "store", "--sink", "store")
    monkeypatch.setattr("msgstore_kestrel_journal.source.detect", detected)
    for verb, more in (("detect", []), ("queues", []), ("messages", []), ("convert", ["new.jsonl"])):
        error = command(verb, "store", *more).stderr
        if detected is open:  # a file that the source need not have read: another one is certain
            assert not error
            continue
        assert said in error
        assert "The other sources were asked. To ask only one, name it (source=, --source)." in error
        assert said in command(verb, messages, *more, code=2).stderr  # nothing else reads it
    if detected is open:
        Path("other").mkdir()
        assert said.replace("store", "other") in command("queues", "other", code=2).stderr


@pytest.mark.parametrize(("kind", "method"), [(KestrelSource, "messages"), (KestrelSink, "refused"), (KestrelSink, "close")])
def test_plugins_check_finds_what_a_source_or_sink_lacks(kind, method, monkeypatch):
    monkeypatch.delattr(kind, method)
    [problem] = (row["message"] for row in json_of("plugins", "--check", code=2) if row["kind"] == "problem")
    assert f"{kind.__name__} has no {method}" in problem
