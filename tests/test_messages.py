"""Messages across systems: every direction that has a meaning, resumed conversions, sources that stay as they are."""

from __future__ import annotations

import base64
import errno
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import msgstore
from msgstore.cli.message_options import sink_backend
from msgstore.cli.output import progress
from msgstore.contract import ConfigError, MessageBatch, QueueName, StoreError, StoreIOError
from msgstore.jobs.detection import detect
from msgstore.jobs.messages import conversion_plan, parallel
from msgstore.jobs.messages import convert as converting
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.conversion_report import ConvertReport
from msgstore.jobs.messages.convert import convert
from msgstore.jobs.messages.rows import message_id, rows_of
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import open_source, parse_options, source_spec
from msgstore.jobs.output.staging_directory import create_attempt
from msgstore.jobs.tasks import ProgressMeter
from msgstore.option_values import Backend
from msgstore_kestrel_journal.journal import Journal, JournalOptions
from support import DATA, RealDirectory, catalogue, command, failing, json_lines, json_of, slow

VECTORS = DATA / "vectors"
SINKS = {"jsonl": "out.jsonl", "parquet": "out.parquet", "store": "out", "files": "out", "kestrel": "out", "rocketmq": "out"}
SOURCES = ("kestrel", "rocketmq", "store", "jsonl", "parquet")
SMALL = {"rocketmq": {"file_size": 2**20, "queue_entries": 1000, "index": False}}


def kestrel(path: Path, queues: int = 2, messages: int = 40) -> Path:
    """Make a directory of journals, with reserved and removed messages."""
    path.mkdir()
    for number in range(queues):
        journal = Journal(path, f"q{number}", JournalOptions(sync_journal=None), clock_ms=lambda: 1_700_000_000_123)
        for at in range(messages):
            journal.add(b"message %d of %d" % (at, number), 0 if at % 3 else 4_000_000_000_000)
        journal.remove()
        journal.remove_tentative()
        journal._end()
    return path


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Two journals of 39 messages each, of which one is reserved."""
    return kestrel(tmp_path / "origin")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the path that the source of this name reads: the messages of ``origin``. No test changes it."""
    top = tmp_path_factory.mktemp("sources")

    @functools.cache
    def source_of(name: str) -> Path:
        (top / name).mkdir()
        place = top / name / SINKS[name]
        if name == "kestrel":
            kestrel(place)
        else:
            run(source_of("kestrel"), place, sink=name)
        return place

    return source_of


def run(
    source: Path, destination: Path | str, *, sink: str | None = None, dry_run: bool = False, **choices: object
) -> ConvertReport:
    backend = None if sink is None else Backend(sink, SMALL.get(sink, {}))
    selection = select(**choices.pop("selection", {}))
    job = plan_convert(catalogue(), source, str(destination), selection, sink=backend, dry_run=dry_run, **choices)
    return convert(job, ProgressMeter(0))


def messages(path: Path, source: str | None = None) -> list[dict]:
    spec = source_spec(catalogue(), path, None if source is None else Backend(source))
    with open_source(spec) as opened:
        found = [item for info in opened.queues() if info.read for item in opened.messages(info.name, 0, None)]
    return [row for batch in found if isinstance(batch, MessageBatch) for row in rows_of(batch)]


def state_of(path: Path) -> dict[str, tuple]:
    """Return everything about the files at or below a path, except their times of access."""
    found = {}
    for one in [path, *sorted(path.rglob("*"))]:
        status = one.stat()
        content = one.read_bytes() if one.is_file() else b""
        found[str(one)] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, content)
    return found


KEPT = {
    # sink: what is kept besides the bodies and their order
    "jsonl": ("system", "queue", "partition", "position", "id", "state", "timestamp_ms", "expiry_ms", "headers", "origin"),
    "parquet": ("system", "queue", "partition", "position", "id", "state", "timestamp_ms", "expiry_ms", "headers", "origin"),
    "kestrel": ("position", "timestamp_ms", "expiry_ms"),
    "rocketmq": ("position", "timestamp_ms"),
    "store": (),
}


@pytest.mark.parametrize("sink", [sink for sink in SINKS if sink != "files"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_direction(source, sink, sources, tmp_path):
    """The table of docs/reference/messages.md."""
    path = sources(source)
    before, there = state_of(path), messages(path, source)
    report = run(path, tmp_path / SINKS[sink], sink=sink)
    assert report.total("selected") == report.total("written") == len(there) == 78
    assert state_of(path) == before
    found = messages(tmp_path / SINKS[sink], sink)
    if sink == "store":
        assert sorted(row["body"] for row in found) == sorted(row["body"] for row in there)
        return
    assert [row["body"] for row in found] == [row["body"] for row in there]
    for member in KEPT[sink]:
        if source == "store" and member == "timestamp_ms" and sink in ("kestrel", "rocketmq"):
            continue  # a store has no times: messages are added now
        assert [row[member] for row in found] == [row[member] for row in there], member


@pytest.mark.parametrize("through", ["jsonl", "parquet"])
def test_kestrel_comes_back_byte_for_byte(through, tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    for vector in json.loads((VECTORS / "kestrel.json").read_text()):
        queue = vector["queue"]
        if vector["name"] in ("op8_continue_unknown_xid", "op0_add_old_expiry", "op2_addx_expiring"):
            (origin / vector["name"]).write_bytes(bytes.fromhex(vector["journal_files"][queue]))
    (origin / "op7").write_bytes(b"\x07" + (5).to_bytes(4, "little") + (17).to_bytes(4, "little") + bytes(16) + b"x")
    run(origin, tmp_path / SINKS[through], raw=True)
    run(tmp_path / SINKS[through], tmp_path / "back", sink="kestrel")
    raws = [[base64.b64decode(row["raw"]) for row in json_of("messages", path, "--raw", "--source", "kestrel", code=None)]
            for path in (origin, tmp_path / "back")]  # fmt: skip
    assert raws[0] == raws[1]
    assert {raw[0] for raw in raws[0]} >= {0, 2, 7, 8}


def test_diff_of_a_round_trip_is_empty(sources, tmp_path):
    run(sources("parquet"), tmp_path / "b", sink="store")
    report = json_of("diff", sources("store"), tmp_path / "b")[-1]
    assert (report["same"], report["differing"], report["only_a"], report["only_b"]) == (78, 0, 0, 0)


def test_message_of_several_queues_is_stored_once(tmp_path):
    rows = [{"system": "s", "queue": name, "id": "ab" * 16, "body": "eA=="} for name in ("p", "q", "p")]
    rows.append({"system": "s", "queue": "q", "id": "ab" * 16, "body": "eQ=="})
    report = run(json_lines(tmp_path / "m.jsonl", rows), tmp_path / "out", sink="store")
    assert (report.total("written"), report.total("refused")) == (3, 1)
    assert "has another body already" in next(iter(report.reasons))
    with msgstore.open_store(tmp_path / "out", mode="r") as store:
        assert [(entry.msg_id, entry.references) for entry in store.entries()] == [(b"\xab" * 16, 3)]


@pytest.mark.parametrize("name", ["o.JSONL", "o.NdJson", "o.Parquet"])
def test_source_ignores_capital_letters_of_endings(name, tmp_path):
    """A file, and a directory with it. The sink for Parquet makes a directory."""
    (tmp_path / "m.jsonl").write_text('{"system":"s","queue":"q","body":"eA=="}\n')
    (tmp_path / "made").mkdir()
    sink = "jsonl" if name == "o.NdJson" else None
    run(tmp_path / "m.jsonl", made := tmp_path / "made" / name, sink=sink)
    if made.is_dir():
        assert [row["body"] for row in messages(made)] == ["eA=="]
        [part] = made.iterdir()
        part.rename(tmp_path / "part")
        made.rmdir()
        (tmp_path / "part").rename(made)
    for path in (made, tmp_path / "made"):
        assert [row["body"] for row in messages(path)] == ["eA=="]


def test_files_sink_has_a_body_and_its_facts(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"system":"s","vhost":"/","queue":"../a b","body":"eA=="}\n')
    run(tmp_path / "m.jsonl", tmp_path / "out", sink="files")
    [body, about] = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert body.relative_to(tmp_path / "out").as_posix() == "%2F/%2E%2E%2Fa b/00000000.body"
    assert (body.read_bytes(), json.loads(about.read_bytes())["queue"]) == (b"x", "../a b")


def test_files_sink_refuses_queues_whose_directories_are_one_to_the_file_system(tmp_path, monkeypatch):
    """A file system that ignores the case of letters is imitated."""

    def exists(path: Path) -> bool:
        return path.parent.is_dir() and path.name.lower() in (found.name.lower() for found in path.parent.iterdir())

    line = '{"system":"s","vhost":"%s","queue":"%s","body":"eA=="}\n'
    (tmp_path / "m.jsonl").write_text(line % ("v", "a") + line % ("v", "A") + line % ("V", "b") + line % ("v", "b"))
    monkeypatch.setattr(Path, "exists", exists)
    report = run(tmp_path / "m.jsonl", tmp_path / "out", sink="files")
    assert (report.total("written"), report.total("refused")) == (2, 2)
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.body")) == [
        "V/b/00000000.body",
        "v/a/00000000.body",
    ]
    assert all("the directory of another queue: rename one of the queues" in reason for reason in report.reasons)
    dry = run(tmp_path / "m.jsonl", tmp_path / "again", sink="files", dry_run=True)
    assert (dry.total("written"), dry.total("refused")) == (2, 2)


def test_files_sink_measures_names_as_it_writes_them(tmp_path):
    """A letter of three bytes is nine in the name of the directory: 22 have 198 bytes, and 23 have 207."""
    rows = ({"system": "kestrel", "queue": name, "text": "x"} for name in ("名" * 22, "名" * 23, "a" * 200, "a" * 201))
    report = run(json_lines(tmp_path / "m.jsonl", rows), tmp_path / "out", sink="files")
    refused = {one.info.name.queue[0]: [len(one.info.name.queue)] for one in report.queues if one.refused}
    assert refused == {"名": [23], "a": [201]}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["%E5%90%8D" * 22, "a" * 200]


@pytest.mark.parametrize("dry_run", [False, True])
def test_directory_in_place_of_a_file_is_refused_first(dry_run, origin, tmp_path, monkeypatch):
    """No message is read, and nothing is left. A sink that makes a directory replaces an empty one."""
    (out := tmp_path / "out").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(converting, "selected_messages", lambda *_: pytest.fail("a message is read"))
        with pytest.raises(StoreError, match="out: is a directory, and the result is a file"):
            run(origin, out, sink="jsonl", dry_run=dry_run)
    job = plan_convert(catalogue(), origin, str(out), select(), sink=Backend("jsonl"))
    with pytest.raises(StoreError, match="out: is a directory, and the result is a file"):
        parallel.convert_in_parts(
            job, *parallel.plan_parts(job), lambda *_: pytest.fail("a part is converted"), ProgressMeter(0)
        )
    assert [*out.iterdir(), *tmp_path.glob(".*")] == []
    run(origin, out, sink="parquet", dry_run=dry_run)


def test_selection(origin, tmp_path):
    chosen = [row["position"] for row in json_of("messages", origin, "--queue", "q1", "--from-position", "3", "--limit", "2")]
    assert chosen == [3, 4]
    assert {row["state"] for row in json_of("messages", origin, "--state", "reserved")} == {"reserved"}
    assert len(json_of("messages", origin, "--limit", "60", "--no-body")) == 60
    report = run(origin, tmp_path / "out.jsonl", selection={"queues": ("q*",), "limit": 50})
    assert [queue.written for queue in report.queues] == [39, 11]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("messages origin --state redy", "Did you mean 'ready'?"),
        ("messages origin --queue q9", "There are: q0, q1"),
        ("messages origin --source kestral", "Did you mean 'kestrel'?"),
        ("messages origin --source-option max_aje=1", "Did you mean 'max_age'?"),
        ("messages nowhere", "there is no such file or directory"),
        ("messages origin --limit -1", "at least 0"),
        ("queues origin --source rocketmq", "the source rocketmq finds nothing here, and kestrel recognises it: "),
        ("messages origin --group g", "--group: the source kestrel has no such option"),
        ("convert origin out.jsonl --no-mandatory", "--no-mandatory: the sink jsonl has no such option"),
        ("convert origin out.jsonl --sink-option to=x", "the sink jsonl: unknown key 'to'"),
        ("convert origin out", "Name one with --sink"),
        ("convert origin out.jsonl --rename q9=x", "There are: q0, q1"),
        ("convert origin out.jsonl --rename q0=q1", "--rename: the queues q0 and q1 would have one name, q1"),
        ("convert origin out.jsonl --journal journal", "--journal: is for a URL"),
        ("convert origin out.jsonl --sink-option x", "not of the form NAME=VALUE"),
        ("convert origin origin/out.jsonl", "into which nothing is written"),
        ("convert origin none/out.jsonl", "there is no such directory"),
        ("convert origin there.jsonl", "is there already"),
        ("detect nowhere", "there is no such file or directory"),
        ("detect /dev/null", "/dev/null: is neither a regular file nor a directory"),
        ("messages /dev/null", "/dev/null: is neither a regular file nor a directory"),
        ("convert origin out --sink store --sink-option record=audit", "msgstore: the new store: record: "),
    ],
)
@pytest.mark.usefixtures("origin")
def test_misuse_is_a_clear_error(arguments, told, tmp_path, monkeypatch):
    (tmp_path / "there.jsonl").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert told in command(*arguments.split(), code=2).output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["origin", "there.jsonl"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "Expecting property name"),
        ("[]", "not an object"),
        ("{}", "no 'body'"),
        ('{"system":"s","body":"x"}', "not base64"),
        ('{"system":"s","body":"eA==","sise":1}', "no member of a message"),
        ('{"system":"s","body":"eA==","state":"odd"}', "no state 'odd'"),
        ('{"system":"s","body":"eA==","position":true}', "its 'position' is True"),
        ('{"system":"s","body":"eA==","sha256":"00"}', "another sha256"),
        ("[" * 100_000, "not a message"),
        ('{"system":"s","body":"eA==","sequence":1' + "0" * 30 + "}", "which is no number of 64 bits"),
        ('{"system":"s","body":"eA==","partition":4294967296}', "which is no number of 32 bits"),
        ('{"system":"s","body":"eA==","queue":"\\ud800"}', "surrogates not allowed"),
        ('{"system":"s","body":"eA==","headers":{"a":NaN}}', "NaN is not JSON"),
        ('{"system":"s","body":"eA==","routing_keys":[5]}', "its 'routing_keys' are not all text"),
        ('{"system":"s","body":"eA==","origin":{"offset":"x"}}', "its 'origin' is not a file, an offset and a size"),
    ],
)
def test_damaged_line_is_reported_and_others_are_read(line, told, tmp_path):
    good = '{"system":"s","body":"eA=="}'
    (tmp_path / "m.jsonl").write_text(f"{good}\n{line}\n\n{good}")
    *rows, damage = json_of("messages", tmp_path / "m.jsonl", code=1)
    assert [row["position"] for row in rows] == [0, 1]
    assert (damage["kind"], damage["path"]) == ("damage", "m.jsonl")
    assert (damage["offset"], damage["messages"]) == (len(good) + 1, 1)
    assert told in damage["reason"]


def test_damage_is_counted(origin, tmp_path):
    with (origin / "q0").open("ab") as file:
        file.write(b"\x7fxyz")
    summary = json_of("convert", origin, tmp_path / "out.jsonl", code=1)[-1]
    assert (summary["selected"], summary["written"], summary["damaged_spans"]) == (78, 78, 1)
    [first, *_] = json_of("queues", origin, code=1)
    assert (first["queue"], first["messages"], first["damage"], first["states"]) == ("q0", 39, 1, {"reserved": 1, "ready": 38})


def test_dry_run_writes_nothing(origin, tmp_path):
    report = run(origin, tmp_path / "out", sink="rocketmq", dry_run=True)
    assert report.total("written") == 78
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


def test_detection(sources, tmp_path):
    assert [name for name, _ in detect(catalogue(), sources("kestrel"))] == ["kestrel"]
    (tmp_path / "one").write_bytes(b"\x01")
    [(name, candidate)] = detect(catalogue(), tmp_path / "one")
    assert (name, candidate.likelihood) == ("kestrel", "perhaps")
    real = RealDirectory.load("v2_clean").copy(tmp_path)
    assert [(name, one.likelihood) for name, one in detect(catalogue(), real)] == [("store", "likely")]
    assert [(name, one.likelihood) for name, one in detect(catalogue(), sources("store"))] == [("store", "certain")]
    (tmp_path / "text").write_text("hello")
    assert command("detect", tmp_path / "text", code=1).output.startswith(f"{tmp_path}/text: no installed source")


def test_real_stores_are_sources(tmp_path):
    real = RealDirectory.load("v2_clean")
    path = real.copy(tmp_path)
    before = state_of(path)
    found = messages(path)
    assert {row["id"] for row in found} == {one["id"] for one in real.manifest["messages"] if one["refcount"]}
    assert state_of(path) == before


def test_id_of_a_message_is_the_same_at_each_try():
    batch = MessageBatch(
        name=QueueName("s", queue="q"), bodies=[b"x", b"y"], positions=[0, 1], states=["ready"] * 2, files=["f"] * 2,
        offsets=[0, 9], sizes=[1, 1], ids=["AB" * 16, None],
    )  # fmt: skip
    assert message_id(batch, 0) == b"\xab" * 16
    assert len(message_id(batch, 1)) == 16
    assert message_id(batch, 1) == message_id(batch.take([1]), 0) != message_id(batch.take([0]), 0)


def test_options_of_a_command_line():
    assert parse_options(("a=1", "b=text", 'd={"x": 1}'), "--o") == {"a": "1", "b": "text", "d": '{"x": 1}'}
    for wrong, told in ((("a",), "NAME=VALUE"), (("b=1", "b=2"), "--o b: is given twice")):
        with pytest.raises(ConfigError, match=told):
            parse_options(wrong, "--o")


# -- interrupted conversions --------------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch):
    """Flushes after a few messages."""
    monkeypatch.setattr(converting, "FLUSH_MESSAGES", 10)
    monkeypatch.setattr("msgstore_kestrel_journal.source._BATCH_MESSAGES", 4)


def break_off(monkeypatch: pytest.MonkeyPatch, source: Path, place: Path, sink: str = "jsonl", **choices: Any) -> None:
    """Run a conversion that fails at its end. What was flushed is kept."""
    with monkeypatch.context() as patched:
        patched.setattr(catalogue().sink(sink).load_factory(), "finish", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(source, place, sink=sink, **choices)


class Interrupted(BaseException):
    """Raised by a sink, as by a signal: an Exception would be a fault of the sink."""


@pytest.mark.parametrize(
    ("step", "sink"),
    [("write", "jsonl"), *(("flush", sink) for sink in SINKS), ("finish", "jsonl")]
    + [slow(step, sink) for step in ("write", "finish") for sink in SINKS if sink != "jsonl"],
)
def test_interrupted_conversion_continues(step, sink, often, origin, tmp_path, monkeypatch):
    run(origin, tmp_path / "whole", sink=sink)
    factory = catalogue().sink(sink).load_factory()
    method, calls = getattr(factory, step), []

    def failing(self, *arguments):
        calls.append(step)
        if len(calls) < 3 if step == "finish" else len(calls) % 3 == 0 and len(calls) < 20:
            raise Interrupted
        return method(self, *arguments)

    monkeypatch.setattr(factory, step, failing)
    place = tmp_path / SINKS[sink]
    for _ in range(30):
        try:
            report = run(origin, place, sink=sink)
            break
        except Interrupted:
            assert not place.exists()
    assert report.total("selected") == report.total("written") == 78
    assert report.kept is not None or step == "write"
    assert len(calls) > 2
    if sink == "files":
        assert contents(place) == contents(tmp_path / "whole")
    else:
        members = ("queue", "position", "body", "timestamp_ms", "id") if sink != "store" else ("body", "id")
        found, expected = ([[row[m] for m in members] for row in messages(path, sink)] for path in (place, tmp_path / "whole"))
        assert found == expected
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("change", ["more", "less"])
def test_changed_files_of_an_interrupted_conversion_are_refused(change, often, origin, tmp_path, monkeypatch):
    """A conversion that continues keeps the flushed files, so a change of their size must be noticed."""
    break_off(monkeypatch, origin, tmp_path / "out", "files")
    body = min((tmp_path / ".out.msgstore").rglob("*.body"))
    content = body.read_bytes()
    body.write_bytes(content + b"x" if change == "more" else content[:-1])
    with pytest.raises(StoreError, match=r"and the files of q0 are not as it wrote them\. Begin anew with --restart"):
        run(origin, tmp_path / "out", sink="files")
    body.write_bytes(content)
    assert run(origin, tmp_path / "out", sink="files").total("written") == 78


def test_other_conversion_does_not_continue(often, origin, tmp_path, monkeypatch):
    break_off(monkeypatch, origin, tmp_path / "out.jsonl")
    with pytest.raises(StoreError, match=r"with another --limit\. End it as it was begun, or begin anew with --restart"):
        run(origin, tmp_path / "out.jsonl", selection={"limit": 5})
    text = command("convert", origin, tmp_path / "out.jsonl", "--max-age", "1h", code=2).stderr
    assert "with another --source-option max_age. End it as it was begun" in text
    text = command("convert", origin, tmp_path / "out.jsonl", "--sink", "files", code=2).stderr
    assert "with another sink (it was jsonl). End it as it was begun" in text
    text = command("queues", tmp_path / "out.jsonl", code=2).stderr
    assert "out.jsonl: there is no such file or directory. An unfinished conversion is in " in text
    assert run(origin, tmp_path / "out.jsonl", selection={"limit": 5}, restart=True).total("written") == 5
    assert len(messages(tmp_path / "out.jsonl")) == 5


def full_disk(_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_disk_that_is_full_after_a_flush_keeps_it(often, origin, tmp_path, monkeypatch):
    """The directory of the next part of the new store cannot be created."""

    def create(staging, task, files):
        return full_disk(None) if task == 2 else create_attempt(staging, task, files)

    with monkeypatch.context() as patched:
        patched.setattr("msgstore.jobs.output.parts.create_attempt", create)
        with pytest.raises(StoreIOError, match="What was confirmed is kept"):
            run(origin, tmp_path / "out", sink="store")
    assert run(origin, tmp_path / "out", sink="store").kept


def test_conversion_with_another_secret_does_not_continue(often, origin, tmp_path, monkeypatch):
    """It would make a destination that no key reads."""
    place = tmp_path / "out"
    options = ("--sink", "store", "--sink-option", 'body={ use = "aes-gcm", key = { env = "KEY" } }')
    monkeypatch.setenv("KEY", "0" * 32)
    factory = catalogue().sink("store").load_factory()
    with monkeypatch.context() as patched:
        patched.setattr(factory, "finish", failing(errno.ENOSPC))
        command("convert", origin, place, *options, code=2)
    journal = next(tmp_path.rglob("journal.jsonl")).read_text()
    assert "0" * 32 not in journal
    assert "into it was begun with --sink store. Name one with --sink" in command("convert", origin, place, code=2).stderr
    monkeypatch.setenv("KEY", "1" * 32)
    assert "with another --sink-option body. End it as" in command("convert", origin, place, *options, code=2).stderr
    monkeypatch.setenv("KEY", "0" * 32)
    assert "78 written" in command("convert", origin, place, *options).stdout


def test_changed_source_does_not_continue(often, origin, tmp_path, monkeypatch):
    break_off(monkeypatch, origin, tmp_path / "out.jsonl")
    with (origin / "q0").open("ab") as journal:
        journal.write(b"\1")
    with pytest.raises(StoreError, match="the source has changed since"):
        run(origin, tmp_path / "out.jsonl")


def test_damage_of_a_continued_conversion_is_reported_once(often, origin, tmp_path, monkeypatch):
    """The source tells of it at each opening, or again when the queue is read from where it was left."""
    with (origin / "q0").open("ab") as journal:
        journal.write(b"\xff" * 20)
    whole = run(origin, tmp_path / "whole.jsonl")
    factory: Any = catalogue().sink("jsonl").load_factory()
    write, calls = factory.write, []

    def failing(self, batch):
        calls.append(batch)
        return write(self, batch) if len(calls) % 12 else 1 / 0

    monkeypatch.setattr(factory, "write", failing)
    for _ in range(9):
        with suppress(ZeroDivisionError):
            report = run(origin, tmp_path / "out.jsonl")
            break
    assert report.kept is not None
    assert report.damage == whole.damage != []


@pytest.mark.parametrize("sink", ["parquet", "jsonl", "files"])
def test_conversion_in_parts_has_the_same_messages(sink, sources, tmp_path, monkeypatch):
    """As on Spark, but the parts are converted one after the other."""
    monkeypatch.setattr(parallel, "TASK_MESSAGES", 7)
    monkeypatch.setattr(parallel, "MAX_PARTS", 1000)
    origin = sources("jsonl")
    job = plan_convert(catalogue(), origin, str(tmp_path / "parts"), select(first=3), sink=Backend(sink))
    report, parts = parallel.plan_parts(job)
    assert len(parts) > 2 * len(report.queues) > 2
    report = parallel.convert_in_parts(job, report, parts, map, ProgressMeter(0))
    whole = run(origin, tmp_path / "whole", sink=sink, selection={"first": 3})
    assert [one.as_json() for one in report.queues] == [one.as_json() for one in whole.queues]
    if sink == "files":
        assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    else:
        assert messages(tmp_path / "parts", sink) == messages(tmp_path / "whole", sink)
    assert not list(tmp_path.glob(".*"))


def two_systems(tmp_path: Path, messages: int) -> Path:
    """A file with a queue of one name in each of two systems."""
    rows = ({"system": name, "queue": "q", "body": "eA=="} for name in "ab" for _ in range(messages))
    return json_lines(tmp_path / "two.jsonl", rows)


def test_conversion_in_parts_leaves_nothing_if_it_fails(tmp_path, often, monkeypatch):
    origin = two_systems(tmp_path, 3)
    job = plan_convert(catalogue(), origin, str(tmp_path / "out"), select(), sink=Backend("files"))
    before = set(tmp_path.iterdir())
    with pytest.raises(StoreError, match="two queues have the directory q: rename one"):
        parallel.convert_in_parts(job, *parallel.plan_parts(job), map, ProgressMeter(0))
    assert set(tmp_path.iterdir()) == before
    break_off(monkeypatch, origin, tmp_path / "out", "files")
    with pytest.raises(StoreError, match="an unfinished conversion is there"):
        parallel.convert_in_parts(job, *parallel.plan_parts(job), map, ProgressMeter(0))
    with pytest.raises(ConfigError, match="--limit and the sink store: messages are converted one after the other"):
        parallel.plan_parts(attrs.evolve(job, sink=Backend("store"), selection=select(limit=1)))


def test_queue_is_not_overwritten_after_a_kill(tmp_path, often, monkeypatch):
    """The sink knows from its token whose directory it is."""
    origin = two_systems(tmp_path, 30)
    monkeypatch.setattr("msgstore.jobs.messages.json_lines._BATCH", 100)
    break_off(monkeypatch, origin, tmp_path / "out", "files", selection={"limit": 30})
    journal = tmp_path / ".out.msgstore" / "convert" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"--limit":30', '"--limit":null').replace('"queue":2,', '"queue":1,'))
    report = run(origin, tmp_path / "out", sink="files")
    assert (report.kept, report.total("written"), report.total("refused")) == (30, 30, 30)


def test_name_cannot_look_like_a_line_of_a_report(tmp_path):
    (tmp_path / "m.jsonl").write_text(
        '{"system":"s","queue":"q\\nforged","body":"eA=="}\n{"system":"s","queue":"","body":""}\n'
    )
    for verb in ("queues m.jsonl", "messages m.jsonl", "messages m.jsonl --as text", "convert m.jsonl out.store --sink store"):
        done = command(*(tmp_path / word if word in ("m.jsonl", "out.store") else word for word in verb.split()), code=None)
        assert "q\\nforged" in done.stdout
    assert "''" in command("queues", tmp_path / "m.jsonl").stdout


def test_queue_is_renamed_as_it_is_shown(tmp_path):
    origin = kestrel(tmp_path / "origin", queues=1)
    (origin / "q0").rename(origin / os.fsdecode(b"\xff"))
    shown = command("convert", origin, tmp_path / "refused.jsonl", code=1).stdout
    assert r"the name '\udcff' is not Unicode: rename it with --rename" in shown
    assert "39 written" in command("convert", origin, tmp_path / "out.jsonl", "--rename", r"\udcff=x").stdout
    assert {row["queue"] for row in messages(tmp_path / "out.jsonl")} == {"x"}


def test_references_reach_another_store(tmp_path):
    """Straight, and through a file."""
    once, twice = b"once............", b"twice..........."
    with msgstore.open_store(tmp_path / "store") as store, store.client() as client:
        client.write_many([(once, b"1"), (twice, b"2")])
        client.write(twice, b"2")
    command("convert", tmp_path / "store", tmp_path / "a", "--sink", "store")
    for ending in ("jsonl", "parquet"):
        command("convert", tmp_path / "store", tmp_path / f"m.{ending}")
        command("convert", tmp_path / f"m.{ending}", tmp_path / ending, "--sink", "store")
    for name in ("a", "jsonl", "parquet"):
        with msgstore.open_store(tmp_path / name, mode="r") as store:
            assert {entry.msg_id: entry.references for entry in store.entries()} == {once: 1, twice: 2}


def test_message_is_found_by_its_id(tmp_path):
    with msgstore.open_store(tmp_path / "store") as store, store.client() as client:
        client.write_many((f"{number:016}".encode(), b"body %d" % number) for number in range(9))
    wanted, other = (f"{number:016}".encode().hex() for number in (7, 99))
    assert "body 7" in (shown := command("messages", tmp_path / "store", "--id", wanted).stdout)
    assert "body 6" not in shown
    for verb in (["messages"], ["convert", tmp_path / "empty.jsonl"]):
        shown = command(verb[0], tmp_path / "store", *verb[1:], "--id", other).stdout
        assert f"no selected message has the id {other}" in shown
    assert "body 7" in command("messages", tmp_path / "store", "--id", wanted.upper()).stdout
    assert "1 written" in command("convert", tmp_path / "store", tmp_path / "one.jsonl", "--id", wanted).stdout
    assert [row["id"] for row in messages(tmp_path / "one.jsonl")] == [wanted]
    changed = {"selection": {"ids": (other,)}}
    assert run(tmp_path / "store", tmp_path / "none.jsonl", **changed).total("selected") == 0


def test_queues_of_one_name_show_their_systems(tmp_path):
    rows = [{"system": system, "queue": "q", "body": ""} for system in ("one", "two")]
    json_lines(tmp_path / "m.jsonl", rows)
    for verb in (["queues"], ["convert", "--dry-run"]):
        shown = command(*verb, tmp_path / "m.jsonl", *([tmp_path / "out.jsonl"] if verb[1:] else [])).stdout
        assert re.search(r"^ *system +queue ", shown, re.MULTILINE)
        assert re.search(r"^ *two +q ", shown, re.MULTILINE)


def test_dry_run_counts_as_the_conversion(tmp_path):
    row = {"system": "s", "queue": "q", "id": "00" * 16}
    rows = [row | {"body": body, "queue": queue} for queue in "pq" for body in ("eA==", "eA==", "eQ==")]
    json_lines(tmp_path / "m.jsonl", rows)
    reports = [run(tmp_path / "m.jsonl", tmp_path / "out", sink="store", dry_run=dry) for dry in (True, False)]
    assert [(one.total("written"), one.total("refused")) for one in reports] == [(4, 2)] * 2


def test_progress_off_a_terminal_is_a_line_now_and_then(origin, tmp_path, monkeypatch):
    assert command("convert", origin, tmp_path / "a.jsonl").stderr == ""
    monkeypatch.setattr("msgstore.cli.output.LINE_SECONDS", 0)
    assert re.match(r"(msgstore: converting: \d+ %\n)+$", command("convert", origin, tmp_path / "b.jsonl").stderr)


def test_progress_of_tasks_has_no_share(monkeypatch, capsys):
    """Neither in lines nor on a terminal, because it falls when more tasks become known."""
    monkeypatch.setattr("msgstore.cli.output.LINE_SECONDS", 0)
    with progress("salvaging", "tasks") as show:
        show(12, 12)
        show(12, 1040)
    assert capsys.readouterr().err == "msgstore: salvaging: 12 of 12 tasks\nmsgstore: salvaging: 12 of 1,040 tasks\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("salvaging", "tasks") as show:
        show(12, 1040)
    said = capsys.readouterr().err
    assert "salvaging: 12 of 1,040 tasks" in said
    assert "%" not in said


def test_limit_counts_what_is_there(tmp_path):
    pq.write_table(
        pa.table({"system": ["s"] * 7, "queue": list("aaabbbb"), "body": [b"x", b"x", b"x", None, b"y", b"y", b"y"]}),
        tmp_path / "m.parquet",
    )
    report = run(tmp_path / "m.parquet", tmp_path / "out.jsonl", selection={"limit": 5})
    assert (report.total("selected"), report.total("written"), report.total("damaged")) == (6, 5, 1)


def test_flushes_follow_the_bytes_of_records_and_properties(tmp_path, monkeypatch):
    monkeypatch.setattr(converting, "FLUSH_BYTES", 10_000)
    row = {"system": "s", "queue": "q", "body": "", "headers": {"h": "x" * 1000}, "routing_keys": None}
    rows = [row] * 50 + [row | {"routing_keys": ["k"]}]
    monkeypatch.setattr("msgstore.jobs.messages.json_lines._BATCH", 1000)
    flushes: list[int] = []
    factory: Any = catalogue().sink("jsonl").load_factory()
    flush = factory.flush
    monkeypatch.setattr(factory, "flush", lambda self: flushes.append(1) or flush(self))
    run(json_lines(tmp_path / "m.jsonl", rows), tmp_path / "out.jsonl")
    assert len(flushes) > 4
    assert [row["routing_keys"] for row in messages(tmp_path / "out.jsonl")] == [None] * 50 + [["k"]]


def contents(top: Path) -> dict[Path, bytes]:
    return {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}


SERVICE = """
import json
from pathlib import Path
from msgstore import hookimpl
from msgstore.contract import SinkDescriptor

class Service:
    broken = None

    def __init__(self, context):
        self.log, self.calls = Path(context.destination.partition("://")[2]), 0
    def refused(self, batch): return []
    def write(self, batch):
        self.calls += 1
        with self.log.open("a") as file:
            for body, certainty in zip(batch.bodies, batch.certainties or ["certain"] * len(batch)):
                file.write(json.dumps([body.decode(), certainty]) + "\\n")
        if self.calls == Service.broken:
            raise KeyboardInterrupt
        return []
    def flush(self): return {}
    def finish(self): pass
    def close(self): pass

@hookimpl
def msgstore_sinks():
    return [SinkDescriptor(name="service", contract=(1, 0), factory="acme_service:Service", schemes=("acme",))]
"""


@pytest.fixture
def service(tmp_path, often, monkeypatch):
    """A sink that appends to the file of its URL, and is interrupted at the call of ``write`` with the number ``broken``."""
    place, info = tmp_path / "plugins", tmp_path / "plugins" / "acme_service-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "acme_service.py").write_text(SERVICE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-service\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[msgstore]\nacme = acme_service\n")
    monkeypatch.syspath_prepend(str(place))
    load = functools.cache(msgstore.load_catalogue)
    monkeypatch.setattr(converting, "worker_catalogue", load)
    monkeypatch.setattr(sys.modules[__name__], "catalogue", load)
    monkeypatch.chdir(tmp_path)
    yield catalogue().sink("service").load_factory()
    sys.modules.pop("acme_service", None)


@pytest.mark.parametrize("breaks", [(2,), (6,), (1, 2), (5, 2, 1)])
def test_repeated_messages_of_a_service_are_marked(service, tmp_path, breaks):
    """Whatever is there twice is marked at least once, also after several kills, and one before the first flush."""
    origin, url = kestrel(tmp_path / "origin", queues=1), f"acme://{tmp_path / 'log'}"
    for service.broken in breaks:
        with pytest.raises(KeyboardInterrupt):
            run(origin, url, mark_duplicates=True)
    service.broken = None
    report = run(origin, url, mark_duplicates=True)
    sent = [tuple(json.loads(line)) for line in (tmp_path / "log").read_text().splitlines()]
    certain = [body for body, certainty in sent if certainty == "certain"]
    assert len(certain) == len(set(certain))
    assert len({body for body, _ in sent}) == report.total("written") == 39
    assert report.marked >= 1
    assert not (tmp_path / conversion_plan.JOURNAL).exists()


def test_journal_of_a_service_is_begun_anew_if_asked(service, tmp_path):
    origin, url = kestrel(tmp_path / "origin", queues=1), f"acme://{tmp_path / 'log'}"
    service.broken = 6
    with pytest.raises(KeyboardInterrupt):
        run(origin, url)
    service.broken = None
    assert run(origin, url, dry_run=True).total("written") == 39
    report = run(origin, url, restart=True)
    assert (report.kept, report.total("written")) == (None, 39)


@pytest.fixture
def many_queues(service, tmp_path, monkeypatch) -> tuple[Path, str, Path]:
    """Source, destination and journal of a conversion of 30 queues that was interrupted in the last one."""
    origin, url = kestrel(tmp_path / "origin", queues=30, messages=3), f"acme://{tmp_path / 'log'}"
    service.broken = 30
    with pytest.raises(KeyboardInterrupt):
        run(origin, url)
    service.broken = None
    return origin, url, tmp_path / conversion_plan.JOURNAL


def test_journal_has_only_counts_that_have_changed(many_queues):
    """All counts in each line would grow with the square of the queues."""
    origin, url, journal = many_queues
    states = [line for line in map(json.loads, journal.read_text().splitlines()) if "token" in line]
    assert [list(state["counts"]) for state in states] == [[str(number)] for number in range(29)]
    whole, report = run(origin, url, dry_run=True), run(origin, url)
    assert (report.queues, report.kept) == (whole.queues, 58)


def test_journal_of_the_version_before_is_continued(many_queues):
    """Each state had the counts of all queues, in a list, and all reasons."""
    origin, url, journal = many_queues
    lines, counts = [], [[0] * 5] * 30
    for line in map(json.loads, journal.read_text().splitlines()):
        if "token" in line:
            counts = [line["counts"].get(str(number), before) for number, before in enumerate(counts)]
            line |= {"counts": counts, "reasons": {"boom": 1}}
        lines.append(json.dumps(line, separators=(",", ":")) + "\n")
    journal.write_text("".join(lines))
    report = run(origin, url)
    assert [one.selected for one in report.queues] == [2] * 30
    assert (report.kept, report.reasons) == (58, {"boom": 1})


def test_journal_of_another_version_is_refused(many_queues):
    origin, url, journal = many_queues
    journal.write_text(journal.read_text().replace('"counts":{', '"numbers":{'))
    with pytest.raises(StoreError, match=r"is of another version\. Begin anew with --restart"):
        run(origin, url)
    assert run(origin, url, restart=True).total("written") == 60


def test_file_that_is_no_journal_is_kept(service, origin, tmp_path):
    mine = tmp_path / "mine"
    for content in (b"mine\nnot finished", b"[1]\n", b"{}\nx", b"without a line feed"):
        mine.write_bytes(content)
        for restart in (False, True):
            with pytest.raises(StoreError, match="is not the journal of a conversion"):
                run(origin, "acme://x", journal=mine, restart=restart)
        assert mine.read_bytes() == content


def test_journal_without_a_use_or_in_the_source_is_refused(service, origin, tmp_path):
    with pytest.raises(ConfigError, match="is in the source"):
        run(origin, "acme://x", journal=origin / "journal")
    with pytest.raises(ConfigError, match="takes URLs such as acme://"):
        run(origin, tmp_path / "out", sink="service")
    with pytest.raises(ConfigError, match="acme://x: is a URL, and the sink jsonl writes a file or directory"):
        run(origin, "acme://x", sink="jsonl")


PROGRAM = """
import sys
from msgstore.jobs.messages import convert
import msgstore_kestrel_journal.source as source
convert.FLUSH_MESSAGES, source._BATCH_MESSAGES = 50, 20
from msgstore.cli.main import main
main()
"""


@pytest.mark.crash
@pytest.mark.parametrize("sink", SINKS)
def test_killed_conversion_continues(sink, tmp_path, request):
    """``--kills`` of 300 in all: in = written + refused + damaged after the last, and nothing is there twice."""
    origin = kestrel(tmp_path / "origin", queues=3, messages=4000)
    options = [f"--sink-option={name}={value}".lower() for name, value in SMALL.get(sink, {}).items()]
    command_line = ["convert", str(origin), str(tmp_path / SINKS[sink]), "--sink", sink, "--json", *options]
    argv = [sys.executable, "-c", PROGRAM, *command_line]
    began = time.perf_counter()
    subprocess.run([*argv[:5], str(tmp_path / "timed"), *argv[6:]], check=True, capture_output=True)
    whole, rng, kills = time.perf_counter() - began, random.Random(sink), max(request.config.getoption("--kills") // 6, 2)
    killed = 0
    while killed < kills:
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(whole * rng.uniform(0.5, 1.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        else:
            assert child.returncode == 0
        killed += 1
        if (tmp_path / SINKS[sink]).exists():  # also if the process was killed as it ended
            check_complete(sink, tmp_path)
            subprocess.run(["rm", "-r", str(tmp_path / SINKS[sink])], check=True)
    subprocess.run(argv, check=True, capture_output=True)
    check_complete(sink, tmp_path)


def check_complete(sink: str, tmp_path: Path) -> None:
    place = tmp_path / SINKS[sink]
    if sink == "files":
        assert len(list(place.rglob("*.body"))) == 11_997
    else:
        found = messages(place, sink)
        assert len(found) == len({row["body"] for row in found}) == 11_997


def test_source_on_a_read_only_mount(sources, tmp_path):
    """Without the permission to write; the superuser has it everywhere, so there a read-only mount is made, if it can be."""
    stores = [shutil.copytree(sources(name), tmp_path / name) for name in ("kestrel", "store", "rocketmq")]
    stores.append(DATA / "rabbitmq-3.10/clean")
    mounted = []
    try:
        for number, path in enumerate(stores):
            place = tmp_path / f"mount{number}"
            place.mkdir()
            if (
                os.geteuid() == 0
                and subprocess.run(["mount", "--bind", "-o", "ro", path, place], capture_output=True).returncode == 0
            ):
                mounted.append(place)
                assert messages(place) == messages(path)
                assert command("queues", place).exit_code == 0
            elif path.is_relative_to(tmp_path):
                path.chmod(0o500)
                assert messages(path)
    finally:
        for place in mounted:
            subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("verb", ["scan", "info", "salvage"])
@pytest.mark.parametrize("name", ["kestrel", "rocketmq"])
def test_verbs_of_segments_name_the_verb_for_messages(tmp_path, verb, name):
    more = [tmp_path / "out"] if verb == "salvage" else []
    told = command(verb, DATA / name, *more, code=2).output
    assert f"The source {name} can read it: msgstore queues {DATA / name}" in told


def test_directory_above_stores_is_not_an_empty_store():
    path = DATA / "msg-store" / "v2_clean"
    assert "directories beneath it that have some: store" in command("queues", path, "--source", "store", code=2).output
    assert "directories in it that are recognised: store" in command("queues", path, code=2).output


def test_queues_that_share_a_directory_do_not_overwrite(tmp_path):
    report = run(two_systems(tmp_path, 1), tmp_path / "out", sink="files")
    assert (report.total("written"), report.total("refused")) == (1, 1)


def test_raw_record_of_another_message_is_not_written(sources, tmp_path):
    """Nor is the topic of a raw record kept if the queue is renamed."""
    origin = tmp_path / "m.jsonl"
    command("convert", sources("rocketmq"), origin, "--raw", "--all")
    rows = [json.loads(line) for line in origin.read_text().splitlines()]
    assert all(row["raw"] for row in rows)
    rows[0] |= {"body": base64.b64encode(b"another body").decode(), "sha256": None}
    run(json_lines(origin, rows), tmp_path / "out", sink="rocketmq", rename={rows[0]["queue"]: "NEW"})
    found = messages(tmp_path / "out")
    assert base64.b64encode(b"another body").decode() in [row["body"] for row in found]
    names = {row["queue"] for row in found}
    assert "NEW" in names
    assert rows[0]["queue"] not in names


@pytest.mark.parametrize(("accepts", "types"), [((), {3, 4}), (("checksum",), {3, 4}), (("message",), {3})])
def test_records_of_a_store_are_reflowed(tmp_path, accepts, types):
    """A reader that knows only plain records gets plain ones; the bodies and ids are the same."""
    for record in ("message", "checksum"):
        keys = {"format": {"use": "v2", "records": {"checksum": 4}}, "record": record}
        with msgstore.open_store(tmp_path / "store", **keys) as store, store.client() as client:
            client.write_many((f"{record:>14}{n:2}".encode(), b"body %d" % n) for n in range(10))
    arguments = [part for layout in accepts for part in ("--accepts", layout)]
    rows = json_of("messages", tmp_path / "store", "--raw", *arguments)
    rows = [row for row in rows if "raw" in row]
    assert {base64.b64decode(row["raw"])[0] for row in rows} == types
    assert len({row["id"] for row in rows}) == 20
    for row in rows:
        raw = base64.b64decode(row["raw"])
        assert bytes.fromhex(row["id"]) in raw
        assert base64.b64decode(row["body"]) in raw


@pytest.mark.parametrize(
    ("name", "told"),
    [("kestrel", "has records of one layout"), ("store", "no such record type"), ("rocketmq", "no such layout")],
)
def test_layout_that_is_not_there_is_refused(sources, name, told):
    assert told in command("messages", sources(name), "--raw", "--accepts", "v9", code=2).output


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("amqp://user:pass%40@host:5672/v", "amqp://user:***@host:5672/v"),
        ("amqps://user@host", "amqps://user@host"),
        ("amqp://u:se/cr@et@h", "amqp://u:***@h"),
        ("amqp://host/a:b@c", "amqp://host/a:b@c"),
        ("dir/a:b@c", "dir/a:b@c"),
    ],
)
def test_password_of_a_url_is_not_shown(given, shown):
    assert conversion_plan.without_password(given) == shown


def test_short_options_become_options_of_the_sink():
    found = sink_backend(sink_options=("user_id=keep",), to_exchange=True, declare=True, mandatory=False, rate=2.5, anyway=True)
    assert found is not None
    expected = {"user_id": "keep", "to": "exchange", "declare": True, "mandatory": False, "rate": 2.5, "anyway": True}
    assert (found.name, dict(found.options)) == ("", expected)
    assert sink_backend() is None
