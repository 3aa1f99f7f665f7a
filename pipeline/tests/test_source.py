"""``spark.read.format("msgstore")`` and ``spark.readStream``: the rows of core, and each new record at least once."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

import msgstore
from msgstore.contract import ConfigError, PluginError
from msgstore.jobs.columns.batches import damage_batch, record_batches, segments_batch, spans_batch
from msgstore.jobs.columns.schemas import RECORD, project, records_schema
from msgstore.jobs.inputs import JobInputs, SegmentInput, find_inputs
from msgstore.jobs.workers import open_codec
from msgstore_spark.errors import _parse
from msgstore_spark.jobs import _records
from msgstore_spark.messages import MessageOptions
from msgstore_spark.options import ReadOptions
from msgstore_spark.schemas import full_schema
from msgstore_spark.source import MsgStoreSource, SegmentReader, register
from msgstore_spark.streams import SegmentStreamReader
from msgstore_spark.tasks import SegmentPartition, absolute, first_copies, map_tasks
from rabbitmq_nodes import unpack

# -- queries ------------------------------------------------------------------------------------------------------------------


DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
METADATA = "store string, file string, format string, offset bigint, size bigint, type smallint, id binary"
AUDIT = {"record": "audit", "format": {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}}


@pytest.fixture
def load(spark):
    """``load(*paths, schema=, **options)`` returns a DataFrame."""

    def loaded(*paths, schema=None, **options):
        reader = spark.read.format("msgstore").options(**options)
        if schema:
            reader = reader.schema(schema)
        return reader.load([str(path) for path in paths] if len(paths) > 1 else str(paths[0]))

    return loaded


def written(path, count=300, **keys) -> Path:
    with msgstore.open_store(path, file_size_limit=1500, **keys) as store, store.client("c") as client:
        for n in range(count):
            client.write(n.to_bytes(16), b"message %d" % n)
            if n % 20 == 0:
                store.flush()
    return path


RELATIONS = {
    "records": lambda found: [batch for one in found.inputs for batch in record_batches(one, records_schema([one], None))],
    "damage": lambda found: [damage_batch(found.inputs), spans_batch(found.damage)],
    "segments": lambda found: [segments_batch(found.inputs)],
    "erlang": lambda found: [
        batch
        for one in found.inputs
        for batch in record_batches(one, records_schema([one], open_codec("erlang")), open_codec("erlang"))
    ],
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_rows_are_those_of_core(spark, load, tmp_path, relation):
    """The directories are all those of real brokers, corrupt cases included, and one whose settings are damaged."""
    register(spark)  # explicitly, although it is not necessary
    store = written(tmp_path / "store", 10, record="checksum")
    (store / "msgstore.json").write_text("{")
    expected = [
        row for batch in RELATIONS[relation](find_inputs(msgstore.load_catalogue(), [DATA, store])) for row in batch.to_pylist()
    ]
    df = load(DATA, store, **({"body": "erlang"} if relation == "erlang" else {"relation": relation}))
    rows = [row.asDict() for row in df.collect()]
    for row in rows:
        assert row.pop("modified", True)
        row.update({name: bytes(value) for name, value in row.items() if isinstance(value, bytearray)})
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
    assert len(rows) > {"damage": 15, "segments": 50}.get(relation, 1000)
    if relation == "erlang":
        assert df.where("get_json_object(properties, '$.headers.nested.a') = 1 and payload is not null").count() > 0


def test_fields_of_third_party_are_columns(load, tmp_path):
    """Fields of a codec are columns, too. A schema selects columns, or is refused."""
    store = written(tmp_path / "a", **AUDIT)
    written(tmp_path / "b")
    df = load(tmp_path)
    assert df.columns[8:] == ["time", "actor", "modified"]
    rows = df.groupBy("store", "actor", "type").count().collect()
    counts = {(Path(row.store).name, row.actor, row.type): row["count"] for row in rows}
    assert counts == {("a", "billing", 200): 300, ("b", None, 3): 300}
    assert df.where("store like '%a' and (time is null or time > now())").count() == 0
    some = load(store, schema="actor string, id binary")
    assert [(row.actor, bytes(row.id)) for row in some.orderBy("id").collect()] == [
        ("billing", n.to_bytes(16)) for n in range(300)
    ]
    for schema, message in (
        ("actress string", r"there is no column 'actress'; there are: store, file, format, offset"),
        ("id string", r"the column 'id' is binary, not string; cast it after \.load\(\)"),
    ):
        with pytest.raises(PySparkException, match=message):
            load(store, schema=schema).count()
    (store / "msgstore.json").unlink()
    assert load(store, schema=METADATA).count() == 300, "the copy has the bindings"
    (store / "msgstore.json.copy").unlink()
    assert load(store, schema=METADATA).count() == 0
    assert load(store, records="checksum=4, audit=200").where("actor = 'billing'").count() == 300


def test_conditions_select_rows_and_files(load, tmp_path):
    store = written(tmp_path / "store")
    names = sorted(path.name for path in store.glob("*.sqs"))
    ids = ", ".join(f"X'{n.to_bytes(16).hex()}'" for n in (3, 250, 999))
    rows = load(store, where=f"id in ({ids})").collect()
    assert {bytes(row.body) for row in rows} == {b"message 3", b"message 250"}
    counts = {
        "type = 3 and id = X'0000000000000000000000000000000a'": 1,
        **dict.fromkeys(("type in (4,5)", "type = 300", "type = -1", "type=3 and type=4", "size < 0"), 0),
        "TYPE IN (3, 300)": 300,
        "type < 40000 and size < 99999999999999999999": 300,
        "type = 3 and offset = 64": len(names),
        f"offset > 64 AND size >= 1 and file <= '{names[-1]}'": 300 - len(names),
        "id >= X'00000000000000000000000000000003' and id <= X'00000000000000000000000000000007'": 5,
    }
    assert {condition: load(store, where=condition).count() for condition in counts} == counts
    some = load(store, taskSize=1, where=f"file in ('{names[1]}', 'none')")
    assert some.rdd.getNumPartitions() == 1 < len(names)
    assert {row.file for row in some.collect()} == {names[1]}
    assert load(store, relation="segments", where=f"file > '{names[1]}'").count() == len(names) - 2
    (store / "msgstore.json").write_text("{")
    assert load(store, relation="damage").count() == 1
    assert load(store, relation="damage", where="file = '0.sqs'").count() == 0


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_queries_of_one_frame_do_not_meet(spark, load, tmp_path, enabled):
    """Spark gives filters that a source accepts to every query of the same DataFrame. Ours accepts none."""
    df = load(written(tmp_path / "store"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        first = df.where("offset = 64")
        count = first.count()
        assert (df.count(), first.count(), first.union(df).count()) == (300, count, 300 + count)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_directories_and_time_are_columns(load, tmp_path):
    """Names of columns are in any case, as in Spark. A name that records have is no column of a directory."""
    for node in ("a", "b c"):
        written(tmp_path / f"id=1/node={node.replace(' ', '%20')}/store", 10)
    written(tmp_path / "id=1/store", 1)
    df = load(tmp_path)
    assert df.columns[7:] == ["body", "modified", "node"]
    assert {row.node: row["count"] for row in df.groupBy("node").count().collect()} == {"a": 10, "b c": 10, None: 1}
    some = load(tmp_path, schema="NODE string, Modified timestamp, ID binary")
    assert some.columns == ["NODE", "Modified", "ID"]
    assert some.where("node = 'a' and id < X'00000000000000000000000000000005'").count() == 5
    written(tmp_path / "STORE=x/Type=y/format=z/Node=1/node=\udce9/File=0", 3)
    df = load(tmp_path / "STORE=x")
    assert df.columns[8:] == ["modified", "Node"]
    [row] = df.where("format = 'v2' and type = 3 and file = '0.sqs'").select("store", "node").distinct().collect()
    assert (Path(row.store).name, row.node) == ("File=0", "\\udce9")
    shutil.rmtree(tmp_path / "STORE=x")
    times = {row.Modified.timestamp() for row in some.collect()}
    assert times == {path.stat().st_mtime_ns // 1000 / 1e6 for path in tmp_path.rglob("*.sqs")}


def test_damage_fails_query_if_asked(load, tmp_path):
    store = written(tmp_path / "store")
    first, *_, last = sorted(store.glob("*.sqs"))
    data = bytearray(last.read_bytes())
    data[64:68] = bytes([255] * 4)
    last.write_bytes(data)
    assert 0 < load(store).count() < 300
    assert load(store, mode="permissive").where(f"file = '{first.name}'").count() > 0
    failing = load(store, mode="FAILFAST")
    with pytest.raises(
        PySparkException, match=rf"{last.name}: \d+ bytes at offset 64 are damaged: \w+\. 'msgstore salvage' copies"
    ):
        failing.count()
    segments = load(store, relation="segments").collect()
    assert {row.modified.timestamp() for row in segments} == {
        path.stat().st_mtime_ns // 1000 / 1e6 for path in store.glob("*.sqs")
    }
    states = {row.file: row.state for row in segments}
    assert {name for name, state in states.items() if state != "clean"} == {last.name}
    last.unlink()
    assert load(store, mode="FAILFAST").count() > 0
    with pytest.raises(PySparkException, match=rf"{last.name}: unreadable: No such file"):
        failing.count()
    (store / "msgstore.json").write_text("{")
    with pytest.raises(PySparkException, match=r"msgstore.json: settings_damaged; the mode is FAILFAST"):
        load(store, mode="FAILFAST").count()


def test_plugin_that_is_missing_where_a_query_is_planned_names_the_python(tmp_path):
    for call in (
        lambda: full_schema(
            options := ReadOptions.of({"path": str(written(tmp_path / "store")), "body": "nope"}), options.find()
        ),
        lambda: MessageOptions.of({"path": str(tmp_path), "source": "nope"}),
    ):
        with pytest.raises(
            PluginError, match=f"^{sys.executable}, with which Spark plans the query: no installed plugin provides"
        ):
            call()


def test_table_of_catalog_is_read(spark, load, tmp_path):
    """Spark passes a table's own properties as options when it is created, and no options when it is read."""
    store = written(tmp_path / "store", body="erlang")
    spark.sql(f"CREATE TABLE messages USING msgstore OPTIONS (path '{store}', body 'erlang') TBLPROPERTIES ('team' = 'mail')")
    spark.sql(f"CREATE TABLE segments USING msgstore OPTIONS (relation 'segments') COMMENT 'all of them' LOCATION '{store}'")
    spark.sql(f"CREATE TABLE listed (id binary) USING msgstore LOCATION '{store}'")
    try:
        assert spark.sql("SELECT payload FROM messages WHERE id = X'00000000000000000000000000000005'").collect()[0][:] == (
            b"message 5",
        )
        assert spark.table("segments").count() == len(list(store.glob("*.sqs")))
        with pytest.raises(PySparkException, match="keeps its path only if CREATE TABLE has no list of columns"):
            spark.table("listed").count()
        for statement in ("INSERT INTO messages SELECT * FROM messages", "CREATE TABLE copy USING msgstore AS SELECT 1"):
            with pytest.raises(PySparkException, match="Tables of the catalog are read only"):
                spark.sql(statement)
    finally:
        for name in ("messages", "segments", "listed"):
            spark.sql(f"DROP TABLE {name}")


def test_schema_by_hand_gives_these_columns(load, tmp_path):
    store = written(tmp_path / "store", body="erlang")
    rows = load(store, schema="Offset bigint NOT NULL, payload binary", body="erlang").collect()
    assert b"message 0" in [row.payload for row in rows]
    with pytest.raises(PySparkException, match=r"there is no column 'payload'.*such as \.option\(\"body\", \"erlang\"\)"):
        load(store, schema="payload binary").count()


@pytest.mark.parametrize(
    ("schema", "megabytes", "options", "tasks"),
    [
        ("id body", 8192, {}, 128),
        ("id", 8192, {"taskSize": "64MiB"}, 128),
        ("id", 8192, {"relation": "segments"}, 128),
        ("id", 640, {}, 10),
        ("id body", 640, {"taskSize": "640MB"}, 2),
        ("id offset", 4096, {}, 32),
        ("id offset", 16384, {}, 64),
    ],
)
def test_tasks_without_bodies_are_larger(schema, megabytes, options, tasks):
    """If there are enough of them."""
    inputs = tuple(SegmentInput(rank, "s", f"s/{rank}.sqs", "v2", 2**20) for rank in range(megabytes))
    names = [name for name in RECORD.names if name in schema]
    asked = ReadOptions.of({"path": "s", **options})
    assert len(SegmentReader(asked, JobInputs(inputs, (), (), ()), project(RECORD, names)).partitions()) == tasks


def test_tasks_have_limited_number_of_segments():
    inputs = tuple(SegmentInput(rank, "s", f"s/{rank}.sqs", "v2", 100) for rank in range(20_000))
    partitions = SegmentReader(ReadOptions.of({"path": "s"}), JobInputs(inputs, (), (), ()), RECORD).partitions()
    assert [len(one.inputs) for one in partitions if isinstance(one, SegmentPartition)] == [1024] * 19 + [544]


def test_job_of_too_many_segments_is_refused():
    with pytest.raises(ConfigError, match="at most 8,388,608 segments"):
        first_copies(None, [SegmentInput(2**23, "s", "s/0.sqs", "v2", 100)], "rank")


def test_task_gets_its_own_segments_only(spark, tmp_path, monkeypatch):
    """With absolute paths: executors have other working directories. A worker's imports are excluded from collections."""
    reader = SegmentReader(ReadOptions.of({"path": "s"}), find_inputs(msgstore.load_catalogue(), [DATA]), RECORD)
    assert len(pickle.dumps(reader)) < 2000 < len(pickle.dumps(reader.partitions()[0]))
    monkeypatch.chdir(tmp_path)
    found = SegmentInput(0, "store", "store/0.sqs", "v2", 64)
    assert absolute((3, (found,))) == (3, (SegmentInput(0, "store", str(tmp_path / "store/0.sqs"), "v2", 64),))

    def look(_, __):
        yield pa.record_batch({"worker": [os.getpid()], "frozen": [gc.get_freeze_count()]})

    rows = map_tasks(spark, look, range(20), pa.schema({"worker": pa.int64(), "frozen": pa.int64()})).collect()
    assert 20 - len({row.worker for row in rows}) <= sum(row.frozen > 10_000 for row in rows)


def test_paths_globs_and_urls_name_stores(load, tmp_path, monkeypatch):
    """A DataFrame lists them at its first query; rows of segments that are gone are missing."""
    monkeypatch.chdir(tmp_path)
    stores = [str(written(tmp_path / name, 10)) for name in ("a", "b", "c,d", "e f")]

    def found(*paths):
        return sorted({row.store for row in load(*paths, schema="store string").collect()})

    assert found(tmp_path) == found(*stores) == found(f"{tmp_path}/*") == stores
    assert found(f"{stores[0]}, {stores[1]}") == stores[:2]
    assert found(stores[2]) == [stores[2]]
    assert found(f"file://{tmp_path}/e%20f") == [stores[3]]
    assert found(f"{stores[0]}/*.sqs", stores[0]) == [stores[0]]
    df = load(tmp_path)
    assert df.count() == 40
    for segment in (tmp_path / "b").glob("*.sqs"):
        segment.unlink()
    assert df.count() == 30


@pytest.mark.parametrize("is_mount_point", [False, True])
@pytest.mark.parametrize("relation", ["records", "damage", "segments", "stream"])
def test_directory_that_executor_lacks_fails_query(tmp_path, relation, is_mount_point):
    """A stream reads the rest later. A segment that is gone from a directory was deleted, and is no failure."""
    segments = sorted(written(tmp_path / "store", 90).glob("*.sqs"))
    query: Any
    if relation == "stream":
        query = reader(tmp_path / "store")
        shares = query.partitions({}, query.latestOffset({}, ReadAllAvailable()))
    else:
        source = MsgStoreSource({"path": str(tmp_path / "store"), "relation": relation})
        query = source.reader(source.schema())
        shares = query.partitions()
    (tmp_path / "store").rename(tmp_path / "hidden")
    if is_mount_point:
        (tmp_path / "store").mkdir()
    with pytest.raises(msgstore.StoreError, match=r"^on \S+ \(.*sqs: No such .*Executors need it under this path"):
        list(query.read(shares[0]))
    if is_mount_point:
        (tmp_path / "store").rmdir()
    (tmp_path / "hidden").rename(tmp_path / "store")
    segments[0].unlink()
    rows = sum(batch.num_rows for share in shares for batch in query.read(share))
    assert rows > 0 if relation != "damage" else rows == 1
    with pytest.raises(msgstore.StoreError, match="Executors need it under this path"):  # as a job does
        list(_records(0, [SegmentInput(0, "store", str(tmp_path / "none/0.sqs"), "v2", 64)]))


def test_segment_that_executor_may_not_read_fails_query(tmp_path, monkeypatch):
    """Its rows would be missing, and nothing would say so. The relation ``damage`` says so."""
    store = written(tmp_path / "store", 10)

    def refuse(path: str, flags: int, mode: int = 0) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("msgstore_spark.tasks.os.open", refuse)
    for relation in ("records", "damage"):
        source = MsgStoreSource({"path": str(store), "relation": relation})
        query = source.reader(source.schema())
        fails = pytest.raises(msgstore.StoreError, match=r"^on \S+ \(.*\), user \w+: .*0.sqs: Permission denied")
        with fails if relation == "records" else contextlib.nullcontext():
            list(query.read(query.partitions()[0]))


def test_stream_writes_no_store(spark, tmp_path):
    register(spark)
    stream = spark.readStream.format("rate").load().selectExpr("unhex(md5(string(value))) as id", "binary('x') as body")
    with pytest.raises(PySparkException, match=r"a stream cannot write a store. Write one for each batch, in .*foreachBatch"):
        stream.writeStream.format("msgstore").option("checkpointLocation", str(tmp_path)).start(
            str(tmp_path)
        ).awaitTermination()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "missing"}, "missing: there is no such file or directory"),
        ({}, "there is no path: write .load"),
        ({"path": "s", "mode": "DROP"}, "option 'mode': 'DROP' is none of PERMISSIVE, FAILFAST"),
        ({"path": "s", "where": "size > 1 OR size < 0"}, "option 'where': there is no or. Write such as type in (1, 3)"),
        ({"path": "s", "where": "size > many"}, "'many' is no value of size. Write such as 100"),
        ({"path": "s", "where": "file = 'a or b'"}, "s: there is no such file"),
        ({"path": str(DATA / "kestrel")}, 'The source kestrel can read it: .option("source", "kestrel") (broken'),
        ({"path": "s", "where": "body = 1"}, "'body = 1' is no condition. Its parts are: id, offset"),
        ({"path": "s", "where": "offset == 64"}, "'offset == 64' is no condition. Its parts are: id, offset"),
        ({"path": "s", "where": "node = 'a'"}, "A directory name=value is chosen by the path: .load('.../name=value')"),
        ({"path": "s", "refcounts": "c.csv"}, "unknown option 'refcounts': a store has all records, live or dead. Join with"),
        ({"path": "s", "where": "id = 'x'"}, "\"'x'\" is no value of id"),
        ({"path": "s", "where": "size > 1", "relation": "damage"}, "only the relation 'records' has conditions"),
        ({"path": "s3a://bucket/store"}, "Mount the bucket"),
        ({"path": "s", "relations": "damage"}, "unknown option 'relations'; did you mean 'relation'"),
        ({"path": "s", "relation": "holes"}, "option 'relation': 'holes' is none of records, damage, segments"),
        ({"path": "s", "records": "audit"}, "option 'records': 'audit' is not NAME=BYTE"),
        ({"path": "s", "records": "audit=4"}, "option 'records' records: audit = 4: a record type is bound to a byte"),
        ({"path": "s", "records": "nobodys=200"}, "no installed plugin provides the record type 'nobodys'"),
        ({"path": "s", "taskSize": "big"}, "option 'taskSize': 'big' is not a size"),
        ({"path": "s", "taskSize": "0"}, "option 'taskSize': 0 bytes are too few"),
        ({"path": "s", "maxFilesPerTrigger": "1", "maxBytesPerTrigger": "1"}, "one of the options"),
    ],
)
def test_wrong_option_is_refused(options, message):
    with pytest.raises(msgstore.MsgStoreError) as raised:
        ReadOptions.of(options).find()
    assert message in str(raised.value)


def test_last_error_of_a_chain_is_told():
    """It names the host, the Python and the user of the executor; Spark passes on the text of all."""
    kind = "msgstore.contract.errors.StoreIOError"
    text = f"{kind}: /new: Permission denied\n\nThe above ...\n{kind}: on vm (python), user spark: /new: Permission denied\n"
    assert str(_parse(text)) == "on vm (python), user spark: /new: Permission denied"


def test_queues_that_are_not_read_are_named_once(caplog):
    source = MsgStoreSource({"path": str(DATA / "rabbitmq-3.10")})
    source.reader(source.schema())
    (line,) = (row.getMessage() for row in caplog.records if "not read" in row.getMessage())
    assert "/queues: not read, may contain messages: queue indexes and " in line
    assert '.option("source", "rabbitmq")' in line


def test_queues_that_a_source_does_not_read_are_named(tmp_path, caplog):
    source = MsgStoreSource({"path": str(unpack(tmp_path, DATA / "rabbitmq-4.0" / "clean.tar.gz")), "source": "rabbitmq"})
    source.reader(source.schema()).partitions()
    [line] = (row.getMessage() for row in caplog.records if "without rows" in row.getMessage())
    assert "qq in vhost /" in line


def test_segment_whose_format_is_missing_is_an_error(tmp_path, monkeypatch):
    """Else its rows would be missing, and only a line on standard error would say so."""
    shutil.copytree(DATA / "msg-store/mixed_upgrade/store", tmp_path / "store")
    without = msgstore.load_catalogue(["msgstore-format-v1:format-v1"])
    monkeypatch.setattr("msgstore_spark.options.worker_catalogue", lambda: without)
    with pytest.raises(msgstore.PluginError, match=r"\d\.rdq \(and 1 more segments\): unreadable: no installed format reads"):
        ReadOptions.of({"path": str(tmp_path / "store")}).find()
    assert len(ReadOptions.of({"path": str(tmp_path / "store"), "relation": "damage"}).find().damage) == 2


# -- streams: stores that are written, torn, collected and deleted meanwhile --------------------------------------------------


@pytest.fixture
def store(tmp_path):
    with msgstore.open_store(tmp_path / "store", file_size_limit=2000, gc_interval=0) as opened:
        yield opened


def write(store: msgstore.Store, *numbers: int) -> None:
    with store.client("c") as client:
        for n in numbers:
            client.write(n.to_bytes(16), b"message %d " % n * 5)
            store.flush()


def reader(path: Path, **options: str) -> SegmentStreamReader:
    source = MsgStoreSource({"path": str(path), **options})
    found = source.streamReader(source.schema())
    assert isinstance(found, SegmentStreamReader)
    return found


def read(stream: SegmentStreamReader, start: Any, end: Any) -> list[int]:
    rows = [row for share in stream.partitions(start, end) for batch in stream.read(share) for row in batch.to_pylist()]
    for row in rows:
        assert row["body"] == b"message %d " % int.from_bytes(row["id"]) * 5
    return [int.from_bytes(row["id"]) for row in rows]


def read_on(stream: SegmentStreamReader, offset: Any, limit: Any) -> tuple[list[list[int]], Any]:
    """Return the records of each micro-batch up to the end, and the last offset."""
    batches = []
    while (end := stream.latestOffset(offset, limit)) != offset:
        batches.append(read(stream, offset, end))
        offset = end
    return batches, offset


def test_segment_without_new_records_is_read_once(store, tmp_path, monkeypatch):
    write(store, *range(10))
    stream = reader(tmp_path / "store")
    offset = stream.latestOffset({}, ReadAllAvailable())
    for path in (tmp_path / "store").glob("*.sqs"):
        os.utime(path, (1e9, 1e9))  # long ago: a later change would change the time
    assert stream.latestOffset(offset, ReadAllAvailable()) == offset  # reads it once more, now that its time is settled
    monkeypatch.setattr("msgstore.jobs.reading.segment_check.checksum", lambda *_: pytest.fail("a segment is read again"))
    assert stream.latestOffset(offset, ReadAllAvailable()) == offset


def test_new_records_are_read_once(store, tmp_path):
    """A torn record is read when it is complete."""
    stream, offset = reader(tmp_path / "store"), {}
    for numbers in (range(10), range(10, 12), range(12, 90), range(90, 91)):
        write(store, *numbers)
        end = stream.latestOffset(offset, ReadAllAvailable())
        assert sorted(read(stream, offset, end)) == list(numbers)
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        assert stream.partitions(end, end) == []
        assert sorted(read(reader(tmp_path / "store"), offset, end)) == list(numbers), "the same after a restart"
        offset = end
    assert len(offset) > 3
    write(store, 91)
    store.close()
    last = max((tmp_path / "store").glob("*.sqs"), key=lambda path: int(path.stem))
    whole = last.read_bytes()
    last.write_bytes(whole[:-2])
    assert stream.latestOffset(offset, ReadAllAvailable()) == offset
    last.write_bytes(whole)
    assert read(stream, offset, stream.latestOffset(offset, ReadAllAvailable())) == [91]


@pytest.mark.parametrize("read_first", [0, 25, 60])
def test_collection_during_stream_loses_nothing(store, tmp_path, read_first):
    """However it moves records: every live one is read, wherever the stream stood."""
    stream, seen = reader(tmp_path / "store"), Counter[int]()
    write(store, *range(read_first))
    planned = stream.latestOffset({}, ReadAllAvailable())
    seen.update(read(stream, {}, planned))
    write(store, *range(read_first, 90))
    end = stream.latestOffset(planned, ReadMaxFiles(1))
    gone = {n for n in range(90) if n % 3}
    with store.client("c") as client:
        client.remove([n.to_bytes(16) for n in gone])
    store.roll()
    store.compact(everything=True)
    seen.update(read(stream, planned, end))  # planned before the collection, read after it
    seen.update(n for batch in read_on(stream, end, ReadMaxFiles(1))[0] for n in batch)
    assert set(range(90)) - gone <= seen.keys()
    # An old batch that is repeated after a restart has no wrong bodies, which read() checks.
    assert set(read(reader(tmp_path / "store"), {}, planned)) <= set(range(90))


def test_limit_ends_micro_batch(store, tmp_path):
    write(store, *range(90))
    files = len(list((tmp_path / "store").glob("*.sqs")))
    stream = reader(tmp_path / "store", maxFilesPerTrigger="2")
    assert stream.getDefaultReadLimit() == ReadMaxFiles(2)
    batches, _ = read_on(stream, {}, stream.getDefaultReadLimit())
    assert [n for batch in batches for n in sorted(batch)] == list(range(90)), "the oldest files first"
    assert len(batches) == -(-files // 2)
    by_bytes = reader(tmp_path / "store", maxBytesPerTrigger="4500B")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(4500)
    for limit, count in ((ReadMaxBytes(4500), 2), (ReadMaxBytes(1), 1), (ReadAllAvailable(), files)):
        assert len(by_bytes.latestOffset({}, limit)) == count
    assert reader(tmp_path / "store").getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_at_its_begin(store, tmp_path):
    write(store, *range(50))
    stream = reader(tmp_path / "store")
    stream.prepareForTriggerAvailableNow()
    write(store, *range(50, 90))
    batches, offset = read_on(stream, {}, ReadMaxFiles(1))
    rest, _ = read_on(reader(tmp_path / "store"), offset, ReadAllAvailable())
    assert [sorted(n for batch in some for n in batch) for some in (batches, rest)] == [list(range(50)), list(range(50, 90))]


def test_query_restarts_from_its_checkpoint(spark, store, tmp_path):
    """A query of another relation than the records is refused."""

    def run() -> Counter[int]:
        stream = spark.readStream.format("msgstore").option("maxFilesPerTrigger", 2).load(str(tmp_path / "store"))
        query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(120)
        rows = spark.read.schema("id binary").parquet(str(tmp_path / "out")).collect()
        return Counter(int.from_bytes(row.id) for row in rows)

    write(store, *range(60))
    assert run() == Counter(range(60))
    write(store, *range(60, 90))
    assert run() == Counter(range(90))
    for option, message in {"relation": "has records only; read the relation 'damage'", "mode": "has no mode FAILFAST"}.items():
        source = MsgStoreSource({"path": str(tmp_path / "store"), option: {"mode": "failfast"}.get(option, "damage")})
        with pytest.raises(msgstore.ConfigError, match=f"a stream {message}"):
            source.streamReader(source.schema()).initialOffset()
