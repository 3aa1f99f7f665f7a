"""Source and sink: directories of many queues, and conversions that go on after a kill."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from msgstore.contract import MessageBatch, QueueName, SinkContext, SourceContext, SourceDamage
from msgstore.jobs.messages import sources as opening
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal import replay, source
from msgstore_kestrel_journal.files import names_by_queue, queue_files, queue_names
from msgstore_kestrel_journal.plugin import KestrelSinkOptions, KestrelSourceOptions
from msgstore_kestrel_journal.sink import KestrelSink
from support import command, json_of

ITEM = r.encode_addx(b"body", 0, 0)


def batch_of(name: QueueName) -> MessageBatch:
    return MessageBatch(name=name, bodies=[b"a"], positions=[0], states=["ready"], files=[""], offsets=[0], sizes=[1])


def test_two_queues_of_one_name_are_refused_after_resuming(tmp_path):
    one, other = QueueName("rabbitmq", vhost="a-b", queue="c"), QueueName("rabbitmq", vhost="a", queue="b-c")
    context = SinkContext(destination=str(tmp_path / "out"), target="out", options=KestrelSinkOptions())
    sink = KestrelSink(context)
    assert not sink.refused(batch_of(one))
    sink.write(batch_of(one))
    token = json.loads(json.dumps(sink.flush()))
    sink.close()
    resumed = KestrelSink(SinkContext(destination=context.destination, target="out", options=context.options, token=token))
    assert [row for row, reason in resumed.refused(batch_of(other)) if "have one name here, 'a-b-c'" in reason] == [0]
    assert not resumed.refused(batch_of(one))
    resumed.close()


@pytest.mark.parametrize(
    ("journals", "others", "evidence"),
    [
        (10, ["README.txt"], "10 of 11; README.txt does not"),
        (2, ["config.json", "core.dump"], "2 of 4; config.json, core.dump do not"),
        (40, ["a1", "a2", "a3", "a4"], "16 of the first 20; a1, a2, a3 and 1 more do not"),
        (2, ["1", "2", "3"], None),
        (0, ["notes"], None),
    ],
)
def test_detect_with_foreign_files_weighs_them(journals, others, evidence, tmp_path):
    for number in range(journals):
        (tmp_path / f"q{number}").write_bytes(ITEM * 2)
    for name in others:
        (tmp_path / name).write_text("a text")
    found = source.detect(tmp_path)
    assert (found and found.likelihood) == (evidence and "perhaps")
    if evidence:
        assert found.evidence == evidence.replace(";", " files begin with records of a Kestrel journal;")


@pytest.mark.parametrize("name", ["notes", "README.txt"])
def test_queues_foreign_file_is_damage(name, tmp_path):
    """Kestrel takes it as a queue, too."""
    (tmp_path / "q").write_bytes(ITEM * 3)
    (tmp_path / name).write_text("a text")
    rows = json_of("queues", tmp_path, code=1)
    counts = {row["queue"]: (row["messages"], row["damage"]) for row in rows if row.get("kind") != "damage"}
    assert counts == {"q": (3, 0), name.split(".")[0]: (0, 1)}
    assert [row["path"] for row in rows if row.get("kind") == "damage"] == [name]


@pytest.mark.parametrize(
    ("added", "expiry", "expected"),
    [(2**63 - 10, 0, 2**63 - 1), (2**63 - 1, 5, 5), (-3_600_000, 0, -1), (-(2**63), 0, 3_600_000 - 2**63), (7, 9, 9)],
)
def test_max_age_at_extreme_times_fits_64_bits(added, expiry, expected, tmp_path):
    """The record is copied only if it has the message's expiry."""
    record = r.encode_addx(b"body", added, expiry)
    (tmp_path / "q").write_bytes(record)
    options = KestrelSourceOptions(max_age=3600)
    context = SourceContext(path=tmp_path, options=options, read=lambda name: (tmp_path / name).read_bytes(), raw=True)
    opened = source.KestrelSource(context)
    (queue,) = opened.queues()
    (batch,) = opened.messages(queue.name, 0, None)
    assert (batch.timestamps_ms, batch.expiries_ms, batch.raws) == ([added], [expected], [record])
    sink = KestrelSink(SinkContext(destination=str(tmp_path / "out"), target="out", options=KestrelSinkOptions()))
    assert not sink.refused(batch)
    sink.write(batch)
    sink.close()
    assert (tmp_path / "out/q").read_bytes() == r.encode_addx(b"body", added, expected)


def test_names_are_looked_at_once_for_all_queues(tmp_path, monkeypatch):
    looked_at = []

    def watched(names, queue):
        looked_at.extend(names)
        return queue_files(names, queue)

    monkeypatch.setattr(source, "queue_files", watched)
    for number in range(50):
        (tmp_path / f"q{number}").write_bytes(ITEM)
        (tmp_path / f"q{number}.bak").write_bytes(b"")
    context = SourceContext(path=tmp_path, options=KestrelSourceOptions(), read=lambda name: (tmp_path / name).read_bytes())
    opened = source.KestrelSource(context)
    found = [queue.name for queue in opened.queues()]
    items = [item for name in found for item in opened.messages(name, 0, None)]
    assert [type(item) for item in items] == [SourceDamage, MessageBatch] * 50
    assert [item.name for item in items] == [name for name in found for _ in range(2)]
    assert len(looked_at) == 2 * 100


def test_names_of_a_queue_are_the_ones_that_all_names_give():
    names = [
        "q", "q.2", "q.3.pack", "q~~1", "q.x", "q.5~~1", "q~~1.x", "q+c", "q+c.5", "qq", "job.1", "job~~2", "~~3", ".hidden",
    ]  # fmt: skip
    groups = names_by_queue(names)
    assert sorted(name for group in groups.values() for name in group) == sorted(names)
    for queue in queue_names(names):
        assert queue_files(groups[queue], queue) == queue_files(names, queue)


def test_replay_reads_the_files_of_its_queue_only(tmp_path, monkeypatch):
    for name in ("q", "other"):
        (tmp_path / name).write_bytes(ITEM)
    read, reads = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path.name) or read(path))
    found = replay(tmp_path, "q")
    assert reads == ["q"]
    assert set(found.to_json()["after_backout"]["files"]) == {"q", "other"}


def test_file_that_cannot_be_read_costs_its_queue_only(tmp_path, monkeypatch):
    """A command for this file alone fails, and can be repeated."""
    for name in "ab":
        (tmp_path / name).write_bytes(ITEM * 3)
    os.mkfifo(tmp_path / "pipe")
    read = opening._read

    def failing(files, path, name):
        if path / name == tmp_path / "a":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path / "a"))
        return read(files, path, name)

    monkeypatch.setattr(opening, "_read", failing)
    rows = json_of("messages", "--source", "kestrel", tmp_path, code=1)
    assert [(row["queue"], row["position"]) for row in rows if "body" in row] == [("b", 0), ("b", 1), ("b", 2)]
    assert {(row["path"], row["reason"]) for row in rows if row.get("kind") == "damage"} == {
        ("a", "cannot be read: Input/output error. The queue is not read"),
        ("pipe", "is no regular file, and is not read"),
    }
    done = command("convert", "--source", "kestrel", tmp_path / "a", tmp_path / "out.jsonl", code=2)
    assert "a: Input/output error" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_dangling_link_costs_its_queue_only(tmp_path):
    """Such as one to a disk that is not mounted. Without the file ``a``, its removals would be missing: what was consumed
    would come back."""
    for name in ("a.100", "b", "b.50"):
        (tmp_path / name).write_bytes(ITEM * 3)
    (tmp_path / "b.60.pack").write_bytes(ITEM)
    for name in ("a", "alone", "b.50", "b.bak", "~~7", ".hidden", "work~~17"):  # the last three belong to no queue
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "absent" / name)
    rows = json_of("queues", "--source", "kestrel", tmp_path, code=1)
    counts = {row["queue"]: (row["messages"], row["damage"]) for row in rows if row.get("kind") != "damage"}
    assert counts == {"a": (0, 1), "alone": (0, 1), "b": (4, 1)}
    link = "cannot be examined: No such file or directory. Mount its disk, or remove the name: its queue is not read"
    foreign = "not a file of the queue: Kestrel does not load a queue beside such a name"
    assert {row["path"]: row["reason"] for row in rows if row.get("kind") == "damage"} == {
        "a": link, "alone": link, "b.bak": foreign,
    }  # fmt: skip
    assert source.detect(tmp_path).likelihood == "likely"
