"""JSON Lines and Parquet with values that nobody expects: from other programs, damaged, or not Unicode."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msgstore.builtin.plugin import FileSourceOptions
from msgstore.contract import MessageBatch, QueueName, SinkContext, SourceContext, SourceDamage
from msgstore.files import Files
from msgstore.jobs.messages import parquet, sources
from msgstore.jobs.messages.columns import record_batch
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.convert import convert
from msgstore.jobs.messages.json_lines import JsonLinesSource
from msgstore.jobs.messages.rows import encode, not_unicode
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import open_source, source_spec
from msgstore.jobs.messages.store_sink import StoreSink
from msgstore.jobs.tasks import ProgressMeter
from msgstore.option_values import Backend
from msgstore.testing.probes import open_files
from msgstore_kestrel_journal.records import encode_addx
from msgstore_rocketmq_log import log
from support import catalogue, command, failing, json_of

NOT_UTF8 = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())


def table(**columns: object) -> pa.Table:
    """Three messages of one queue, with other columns."""
    return pa.table({"system": ["s"] * 3, "queue": ["q"] * 3, "body": [b"0", b"1", b"2"], **columns})


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("body", ["0", "1", "2"], "has the type string, and must have binary"),
        ("timestamp_ms", pa.array([0, 1, 2], pa.timestamp("ms")), "has the type timestamp[ms], and must have int64"),
        ("partition", ["0", "1", "2"], "has the type string, and must have int32"),
        ("sequence", [0.5, 1, 2], "has the type double, and must have int64"),
        ("verified", [1, 1, 1], "has the type int64, and must have bool"),
        ("routing_keys", ["a", "b", "c"], "has the type string, and must have list<"),
        ("routing_keys", [[1], [2], [3]], "has the type list<"),
        ("headers", [{"a": 1}] * 3, "has the type struct<a: int64>, and must have string"),
        ("origin", [{"offset": "x"}] * 3, "has the type struct<offset: string>, and must have struct<"),
    ],
)
def test_parquet_column_of_another_type_is_an_error(column, values, told, tmp_path):
    pq.write_table(table(**{column: values}), path := tmp_path / "m.parquet")
    for verb in ("queues", "messages"):
        output = command(verb, path, code=2).output
        assert f"{path}: the column {column!r}" in output
        assert told in output


def test_parquet_with_two_columns_of_a_name_is_an_error(tmp_path):
    pq.write_table(table().append_column("body", [[b"3", b"4", b"5"]]), path := tmp_path / "m.parquet")
    assert f"{path}: there are several columns 'body'" in command("messages", path, code=2).output


def test_parquet_types_with_the_same_values_are_read(tmp_path):
    columns = {
        "queue": pa.array(["q"] * 3).dictionary_encode(),
        "body": pa.array([b"0", b"1", b"2"], pa.large_binary()),
        "id": pa.array(["i"] * 3, pa.large_string()),
        "partition": pa.array([7] * 3, pa.uint8()),
        "sequence": pa.array([7] * 3, pa.int32()),
        "raw_properties": pa.array([b"xy"] * 3, pa.binary(2)),
        "routing_keys": pa.array([["k"]] * 3, pa.large_list(pa.large_string())),
        "expiry_ms": pa.nulls(3),
        "origin": [{"offset": 5, "file": None, "more": 1}] * 3,
    }
    pq.write_table(table(**columns), tmp_path / "m.parquet")
    first, *_ = json_of("messages", tmp_path / "m.parquet")
    expected = {"queue": "q", "body": "MA==", "id": "i", "partition": 7, "sequence": 7, "raw_properties": "eHk="}
    expected |= {"routing_keys": ["k"], "expiry_ms": None, "origin": {"file": "", "offset": 5, "size": 0}}
    assert {member: first[member] for member in expected} == expected


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("body", [b"0", None, b"2"], "its 'body' is None"),
        ("queue", pa.array([b"q", b"\xff", b"q"], pa.binary()).view(pa.string()), "can't decode byte 0xff"),
        ("partition", [None, 2**31, None], "which is no number of 32 bits"),
        ("id", NOT_UTF8, "can't decode byte 0xff"),
        ("state", ["ready", "READY", None], "there is no state 'READY'"),
        ("sha256", [None, "00", None], "another sha256"),
        ("headers", [None, "[1]", None], "its 'headers' is [1]"),
        ("properties", ["{}", "{", None], "Expecting property name"),
        ("headers", ["{}", '{"a":1e999}', None], "1e999 is no number"),
        ("headers", ["{}", '{"a":"\\ud800"}', None], "surrogates not allowed"),
        ("headers", ["{}", '{"a":' * 100_000, None], "recursion"),
        ("routing_keys", [["k"], [None], None], "its 'routing_keys' are not all text"),
        ("origin", [None, {"offset": -1}, None], "its 'origin' is not"),
    ],
)
def test_parquet_impossible_value_is_damage_of_its_row(column, values, told, tmp_path):
    pq.write_table(table(**{column: values}), path := tmp_path / "m.parquet")
    *rows, damage = json_of("messages", path, code=1)
    assert [row["body"] for row in rows] == ["MA==", "Mg=="]
    assert [row["position"] for row in rows] == [0, 1 if column in ("system", "queue", "partition") else 2]
    assert (damage["kind"], damage["offset"], damage["messages"]) == ("damage", 1, 1)
    assert told in damage["reason"]


def test_interleaved_queues_read_row_groups_few_times(tmp_path, monkeypatch):
    """A row group that cannot be read is damage of each queue."""
    with pq.ParquetWriter(path := tmp_path / "m.parquet", table().schema, compression="none") as writer:
        for group in range(4):
            names = [f"q{number % 20}" for number in range(60)]
            bodies = [b"%d in %d" % (number, group) for number in range(60)]
            writer.write_table(pa.table({"system": ["s"] * 60, "queue": names, "body": bodies}))
    chunk = pq.read_metadata(path).row_group(2).column(2)
    content = bytearray(path.read_bytes())
    content[chunk.dictionary_page_offset or chunk.data_page_offset] ^= 0xFF
    path.write_bytes(content)
    opened: list[Path] = []
    original = parquet.open_parquet
    monkeypatch.setattr(parquet, "open_parquet", lambda path: opened.append(path) or original(path))
    with open_source(source_spec(catalogue(), path, Backend("parquet"))) as source:
        for number, info in enumerate(source.queues()):
            [before, damage, after] = source.messages(info.name, 0, None)
            assert isinstance(damage, SourceDamage)
            assert (damage.offset, damage.messages) == (120 + number, 3)
            expected = [b"%d in %d" % (row, group) for group in (0, 1, 3) for row in range(number, 60, 20)]
            assert [*before.bodies, *after.bodies] == expected
            assert [*before.positions, *after.positions] == [0, 1, 2, 3, 4, 5, 9, 10, 11]
            [part] = source.messages(info.name, 4, 6)
            assert part.bodies == expected[4:6]
    assert len(opened) <= 1 + 4 * 3


def test_batch_of_large_bodies_has_few(tmp_path):
    pq.write_table(table(body=[bytes(3 * 2**20)] * 3), path := tmp_path / "m.parquet")
    with open_source(source_spec(catalogue(), path, Backend("parquet"))) as source:
        [info] = source.queues()
        assert [len(batch) for batch in source.messages(info.name, 0, None)] == [2, 1]


@pytest.mark.parametrize("destination", ["out.jsonl", "out.parquet"])
def test_name_that_is_not_unicode_is_refused_or_renamed(destination, tmp_path):
    name = os.fsdecode(b"a\xff")
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / name).write_bytes(encode_addx(b"x", 0, 0))
    (tmp_path / "origin" / "b").write_bytes(encode_addx(b"y", 0, 0))
    origin = [tmp_path / "origin", "--source", "kestrel"]
    assert [row["body"] for row in json_of("messages", *origin, "--queue", name)] == ["eA=="]
    command("messages", *origin, "--json").output.encode()
    refused, *_, summary = json_of("convert", *origin, tmp_path / destination, "--dry-run", code=1)
    assert "rename it with --rename" in refused["reason"]
    assert (summary["written"], summary["refused"]) == (1, 1)
    command("convert", *origin, tmp_path / destination, "--rename", f"{name}=c")
    assert {(row["queue"], row["origin"]["file"]) for row in json_of("messages", tmp_path / destination)} == {
        ("c", "a\ufffd"),
        ("b", "b"),
    }


def test_text_that_is_not_unicode_is_refused():
    batch = MessageBatch(
        name=QueueName("s", queue="q"), bodies=[b"x"] * 3, positions=range(3), states=["ready"] * 3, files=["\udcff"] * 3,
        offsets=[0] * 3, sizes=[1] * 3, headers=[None, {"a": ["\udcff"]}, {"a": "\U0001f600"}],
    )  # fmt: skip
    assert [row for row, _ in not_unicode(batch)] == [1]
    assert not_unicode(batch.take([0, 2])) == ()
    batch.name = QueueName("s", queue="a\udcff")
    assert record_batch(batch, ["queue"]).column(0).to_pylist() == ["a\ufffd"] * 3


def test_number_that_is_not_finite_is_never_written(tmp_path):
    assert encode({"a": [float("-inf"), 1.5]}) == '{"a":[{"$float":"-inf"},1.5]}'
    (tmp_path / "m.jsonl").write_text('{"system":"s","body":"eA==","headers":{"a":1e999}}\n')
    [damage] = json_of("messages", tmp_path / "m.jsonl", code=1)
    assert "1e999 is no number of 64 bits" in damage["reason"]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ([], [(2, {"ready": 2, "consumed": 1}), (1, {"expired": 1})]),
        (["--state=consumed"], [(1, {"ready": 2, "consumed": 1}), (0, {"expired": 1})]),
        (["--from-position=2"], [(1, {"ready": 1}), (0, {})]),
        (["--limit=2"], [(2, {"ready": 2}), (0, {})]),
        (["--all", "--limit=2"], [(2, {"ready": 1, "consumed": 1}), (0, {})]),
    ],
)
def test_selection_of_queues_is_that_of_messages(options, counts, tmp_path):
    rows = [("a", "ready"), ("a", "consumed"), ("a", "ready"), ("b", "expired")]
    lines = (f'{{"system":"s","queue":"{queue}","body":"eA==","state":"{state}"}}\n' for queue, state in rows)
    (tmp_path / "m.jsonl").write_text("".join(lines))
    found = json_of("queues", tmp_path / "m.jsonl", *options)
    assert [(row["messages"], row["states"]) for row in found] == counts


def test_store_sink_copies_no_ids_for_a_batch(tmp_path):
    """Each copy would cost as much as all messages before."""

    class Uncopied(dict[bytes, bytes]):
        def copy(self):
            raise AssertionError

    options = catalogue().sink("store").options()
    sink = StoreSink(SinkContext(destination=str(tmp_path / "out"), target="out", options=options, token=None))
    sink._hashes = Uncopied()
    batch = MessageBatch(
        name=QueueName("s"), bodies=[b"x", b"y"], positions=range(2), states=["ready"] * 2, files=[""] * 2, offsets=[0] * 2,
        sizes=[1] * 2, ids=["ab" * 16] * 2,
    )  # fmt: skip
    assert [row for row, _ in sink.refused(batch)] == [1]
    sink.write(batch.take([0]))
    assert [row for row, _ in sink.refused(batch)] == [1]
    sink.close()


def test_several_globs_select_the_queues_of_each(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"system":"s","queue":"{queue}","body":"eA=="}}\n' for queue in "abc"))
    assert [row["queue"] for row in json_of("messages", path, "--queue", "a", "--queue", "[cd]")] == ["a", "c"]
    assert "queue d: nothing here has such a name" in command("messages", path, "--queue=a", "--queue=d", code=2).output


def test_what_is_not_selected_is_told(tmp_path):
    path, states = tmp_path / "m.jsonl", ("ready", "orphan", "orphan", "half")
    path.write_text("".join(f'{{"system":"s","body":"YQpi","state":"{state}"}}\n' for state in states))
    for verb in (["messages", path], ["convert", path, tmp_path / "out.jsonl"]):
        assert "not selected: 1 half, 2 orphan (--all selects every state)" in command(*verb).output
    assert json_of("convert", path, tmp_path / "more.jsonl")[-1]["not_selected"] == {"half": 1, "orphan": 2}
    shown = command("messages", path, "--all").output
    assert "a\\nb" in shown
    assert "not selected" not in shown


def test_origin_of_a_row_is_relative_to_the_source(tmp_path):
    (tmp_path / "top" / "sub").mkdir(parents=True)
    pq.write_table(pa.table({"system": ["s"], "body": [b"x"]}), tmp_path / "top" / "sub" / "m.parquet")
    files = [
        json_of("messages", path, "--source=parquet")[0]["origin"]["file"] for path in (tmp_path / "top", tmp_path / "top/sub")
    ]
    files.append(json_of("messages", tmp_path / "top" / "sub" / "m.parquet")[0]["origin"]["file"])
    assert files == ["sub/m.parquet", "m.parquet", ""]


def test_json_lines_file_that_fails_is_never_left_out(tmp_path):
    """The second file of a directory cannot be read, also not at the second call."""
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"system": "s", "queue": "q", "body": "MA=="}\n')

    def read(name: str) -> bytes:
        if name == "b.jsonl":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return (tmp_path / name).read_bytes()

    source = JsonLinesSource(SourceContext(path=tmp_path, options=FileSourceOptions(), read=read))
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            source.queues()


@pytest.fixture
def all_mapped(monkeypatch):
    """Let each file that is not empty be a map, and few of them stay open."""
    monkeypatch.setattr(sources, "READ_WHOLE", 0)
    monkeypatch.setattr(sources, "_MAX_MAPS", 2)
    monkeypatch.setattr(log, "_MAX_MAPS", 2)


@pytest.mark.parametrize("name", ["kestrel", "rocketmq", "jsonl"])
@pytest.mark.usefixtures("all_mapped")
def test_few_of_many_large_files_are_open(name, tmp_path):
    lines = [encode({"system": "kestrel", "queue": f"q{at % 2}", "text": f"message {at:03}"}) for at in range(60)]
    path = tmp_path / name
    path.mkdir()
    for number in range(20):
        if name == "kestrel":
            (path / f"q.{number + 1}").write_bytes(encode_addx(b"message %03d" % number, 0, 0))
        else:
            (path / f"{number:02}.jsonl").write_text("".join(f"{line}\n" for line in lines[3 * number : 3 * number + 3]))
    if name == "rocketmq":
        job = plan_convert(
            catalogue(), path, str(tmp_path / "store"), select(), sink=Backend(name, {"file_size": 600, "index": False})
        )
        convert(job, ProgressMeter(0))
        path = tmp_path / "store"
        assert len(list((path / "commitlog").iterdir())) >= 10
    before, most = open_files(), 0
    with open_source(source_spec(catalogue(), path)) as source:
        count = 0
        for info in source.queues():
            for batch in source.messages(info.name, 0, None):
                count += len(batch)
                most = max(most, len([*Path("/dev/fd").iterdir()]) - before)  # what is dropped is closed at once
        assert count == (20 if name == "kestrel" else 60)
    assert 0 < most <= 5
    assert open_files() == before


@pytest.mark.usefixtures("all_mapped")
def test_json_lines_files_that_alternate_are_mapped_once(tmp_path, monkeypatch):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(f'{{"queue":"q{number}","text":"x"}}\n' for number in range(30)))
    mapped, map_file = [], Files.map_file
    monkeypatch.setattr(Files, "map_file", lambda self, path: mapped.append(path.name) or map_file(self, path))
    with open_source(source_spec(catalogue(), tmp_path)) as source:
        assert sum(len(batch) for info in source.queues() for batch in source.messages(info.name, 0, None)) == 60
    assert mapped == ["a.jsonl", "b.jsonl"]


@pytest.mark.usefixtures("all_mapped")
def test_json_lines_file_that_is_mapped_is_not_copied(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"".join(b'{"text":"%s"}\n' % (b"x" * 2**16) for _ in range(100)).removesuffix(b"\n"))
    with open_source(source_spec(catalogue(), path)) as source:
        tracemalloc.start()
        try:
            source.queues()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert sum(len(batch) for batch in source.messages(QueueName("msgstore"), 0, None)) == 100
    assert peak < 2**21


def test_error_of_too_many_open_files_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "m.jsonl").write_text('{"text":"x"}\n')
    monkeypatch.setattr(sources, "READ_WHOLE", 0)
    monkeypatch.setattr(Files, "map", failing(errno.EMFILE))
    error = command("queues", tmp_path, code=2).stderr
    assert f"{tmp_path / 'm.jsonl'}: Too many open files. Allow more open files: ulimit -n" in error
