"""``spark.read.format("msgstore")``: what a scan says, record by record, as DataFrames."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import clusters
import msgstore
from msgstore.files import Files
from msgstore.jobs.columns.schemas import RECORD, project
from msgstore.jobs.inputs import Found, SegmentInput, find_inputs, open_input
from msgstore.scan import SegmentReport, damaged_spans, scan_file
from msgstore_spark.options import ReadOptions
from msgstore_spark.source import SegmentReader, register
from msgstore_spark.tasks import map_tasks
from msgstore_spark.worker_gc import freeze_imports

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
METADATA = "store string, file string, format string, offset bigint, size bigint, type smallint, id binary"


def load(spark: SparkSession, *paths: object, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.read.format("msgstore").options(**options)  # type: ignore[arg-type]
    if schema:
        reader = reader.schema(schema)
    return reader.load([str(path) for path in paths] if len(paths) > 1 else str(paths[0]))


def reports(*paths: object, records: dict[str, int] | None = None) -> Iterator[SegmentReport]:
    """As ``msgstore scan`` has them."""
    for found in find_inputs(msgstore.load_catalogue(), map(str, paths), records=records).inputs:
        yield scan_file(Files(), Path(found.path), open_input(found), fields=True)


def in_order(df: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in df.collect()), key=lambda row: (row["store"], row["file"], row["offset"]))


def test_every_record_of_every_fixture(spark: SparkSession) -> None:
    """Fixtures by real brokers, corrupt cases included."""
    expected = [
        (str(report.path.parent), report.path.name, report.format.name, row["offset"], row["size"], row["type"], row["id"])
        for report in reports(DATA)
        for row in report.as_json()["records"]
    ]
    rows = in_order(load(spark, DATA))
    found = [tuple(row[name] for name in ("store", "file", "format", "offset", "size", "type")) for row in rows]
    assert len(rows) > 1000
    assert [(*row, msg_id["id"].hex()) for row, msg_id in zip(found, rows, strict=True)] == sorted(expected)
    for path in {(row["store"], row["file"]) for row in rows}:
        form, data = next((r.format.format, r.path.read_bytes()) for r in reports(Path(*path)))
        for row in rows:
            if (row["store"], row["file"]) == path:
                record = data[row["offset"] : row["offset"] + row["size"]]
                assert row["body"] == form.decode(bytes(row["id"]), record)


def test_damage_is_that_of_a_scan(spark: SparkSession) -> None:
    expected = [
        (report.path.name, str(report.path.parent), spot.offset, spot.size, spot.reason)
        for report in reports(DATA)
        for spot in damaged_spans(report)
    ]
    rows = load(spark, DATA, relation="damage").select("file", "store", "offset", "length", "reason").collect()
    assert sorted(map(tuple, rows)) == sorted(expected)
    assert len(expected) == 15


def test_segments_add_up(spark: SparkSession) -> None:
    df = load(spark, DATA, relation="segments")
    assert df.selectExpr("sum(header + live + dead + holes + duplicates + damaged + other) = sum(size)").first()[0] is True
    expected = {(str(r.path.parent), r.path.name): (len(r.scan.records), r.size, r.scan.end.state) for r in reports(DATA)}
    assert {(r.store, r.file): (r.records, r.size, r.state) for r in df.collect()} == expected


def written(path: Path, count: int = 300, **keys: Any) -> Path:
    with msgstore.open_store(path, file_size_limit=1500, **keys) as store, store.client("c") as client:
        for n in range(count):
            client.write(n.to_bytes(16), b"message %d" % n)
            if n % 20 == 0:
                store.flush()
    return path


AUDIT = {"record": "audit", "format": {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}}


def test_what_a_third_partys_records_hold_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a", **AUDIT)
    written(tmp_path / "b")
    df = load(spark, tmp_path)
    assert df.columns[8:] == ["time", "actor"]
    counts = {
        (Path(row.store).name, row.actor, row.type): row["count"]
        for row in df.groupBy("store", "actor", "type").count().collect()
    }
    assert counts == {("a", "billing", 200): 300, ("b", None, 3): 300}
    assert df.where("store like '%a' and (time is null or time > now())").count() == 0
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    (tmp_path / "c" / "msgstore.json").unlink()
    assert load(spark, tmp_path / "c").count() == 0
    assert load(spark, tmp_path / "c", records="checksum=4, audit=200").where("actor = 'billing'").count() == 300


def test_the_columns_that_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    store = written(tmp_path / "store", **AUDIT)
    df = load(spark, store, schema="actor string, id binary")
    assert df.columns == ["actor", "id"]
    assert {(row.actor, bytes(row.id)) for row in df.collect()} == {("billing", n.to_bytes(16)) for n in range(300)}
    assert load(spark, store, schema=METADATA).count() == 300
    with pytest.raises(PySparkException, match=r"there is no column 'actress'; there are: store, file, format, offset"):
        load(spark, store, schema="actress string").count()
    with pytest.raises(PySparkException, match=r"the column 'id' is binary, not string; cast it after \.load\(\)"):
        load(spark, store, schema="id string").count()


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters(spark: SparkSession, tmp_path: Path, enabled: str) -> None:
    store = written(tmp_path / "store")
    names = sorted(path.name for path in store.glob("*.sqs"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        df = load(spark, store, taskSize=1)
        assert df.rdd.getNumPartitions() == len(names) > 3
        some = df.where(df.file == names[1])
        assert some.rdd.getNumPartitions() == (1 if enabled == "true" else len(names))
        assert {row.file for row in some.collect()} == {names[1]}
        ids = [bytearray(n.to_bytes(16)) for n in (3, 250, 999)]
        assert {bytes(row.body) for row in df.where(df.id.isin(ids)).collect()} == {b"message 3", b"message 250"}
        assert df.where("type = 3 and id = X'0000000000000000000000000000000A'").count() == 1
        assert df.where("type in (4, 5)").count() == df.where("type = 300").count() == df.where("type = -1").count() == 0
        assert df.where("type in (3, 300)").count() == df.count()
        assert df.where("type = 3 and type = 4").count() == 0
        assert df.where("type = 3 and offset = 64").count() == len(names)
        assert df.where(f"not file = '{names[0]}'").select("file").distinct().count() == len(names) - 1
        assert load(spark, store, relation="segments").where(f"file in ('{names[0]}', 'none')").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_files_are_packed_into_tasks(spark: SparkSession, tmp_path: Path) -> None:
    store = written(tmp_path / "store")
    count = len(list(store.glob("*.sqs")))
    assert load(spark, store).rdd.getNumPartitions() == 1
    assert load(spark, store, taskSize="4kB").rdd.getNumPartitions() == pytest.approx(count / 2, abs=1)
    assert load(spark, store, taskSize="4kB").count() == 300


def test_tasks_that_look_at_no_body_are_larger_where_there_are_enough() -> None:
    def tasks(schema: str, megabytes: int, **options: str) -> int:
        inputs = tuple(SegmentInput(rank, "s", f"s/{rank}.sqs", "v2", 2**20) for rank in range(megabytes))
        names = [name for name in RECORD.names if name in schema]
        asked = ReadOptions.of({"path": "s", **options})
        return len(SegmentReader(asked, Found(inputs, (), (), ()), project(RECORD, names)).partitions())

    assert tasks("id body", 8192) == tasks("id", 8192, taskSize="64MiB") == tasks("id", 8192, relation="segments") == 128
    assert tasks("id", 640) == tasks("id body", 640) == 10
    assert tasks("id offset", 4096) == tasks("id offset", 8192) == 32
    assert tasks("id offset", 16384) == 64


def test_a_task_is_sent_its_own_segments_only(tmp_path: Path) -> None:
    reader = SegmentReader(ReadOptions.of({"path": "s"}), find_inputs(msgstore.load_catalogue(), [DATA]), RECORD)
    share = reader.partitions()[0]
    assert len(pickle.dumps(reader)) < 2000 < len(pickle.dumps(share))


def test_the_collector_of_a_worker_leaves_alone_what_was_imported(spark: SparkSession) -> None:
    def look(_: int, __: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"worker": [os.getpid()], "frozen": [gc.get_freeze_count()]})

    rows = map_tasks(spark, look, range(20), pa.schema({"worker": pa.int64(), "frozen": pa.int64()})).collect()
    assert 20 - len({row.worker for row in rows}) <= sum(row.frozen > 10_000 for row in rows)


def test_so_does_that_of_one_that_reads() -> None:
    reader = SegmentReader(ReadOptions.of({"path": "s"}), find_inputs(msgstore.load_catalogue(), [DATA]), RECORD)
    freeze_imports.cache_clear()
    try:
        assert sum(batch.num_rows for batch in reader.read(reader.partitions()[0]))
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_several_paths_globs_and_urls(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c,d", "e f"):
        written(tmp_path / name, 10)
    monkeypatch.chdir(tmp_path)
    stores = [str(tmp_path / name) for name in ("a", "b", "c,d", "e f")]

    def found(*paths: object) -> list[str]:
        return sorted({row.store for row in load(spark, *paths, schema="store string").collect()})

    assert found(tmp_path) == found(*stores) == found(f"{tmp_path}/*") == stores
    assert found(f"{stores[0]}, {stores[1]}") == stores[:2]
    assert found(stores[2]) == [stores[2]]
    assert found(f"file://{tmp_path}/e%20f") == [stores[3]]
    assert found(f"{stores[0]}/*.sqs", stores[0]) == [stores[0]]


def test_a_new_query_lists_anew(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with msgstore.open_store(store) as opened, opened.client("c") as client:
        client.write(bytes(16), b"first")
        opened.flush()
        df = load(spark, store)
        assert df.count() == 1
        client.write(bytes(15) + b"1", b"second")
        opened.flush()
        assert df.count() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "missing"}, "missing: there is no such file or directory"),
        ({"path": "empty"}, "empty: there are no segments in this directory"),
        ({}, "there is no path: write .load"),
        ({"path": "s3a://bucket/store"}, "Mount the bucket"),
        ({"path": "store", "relations": "damage"}, "unknown option 'relations'; did you mean 'relation'"),
        ({"path": "store", "relation": "holes"}, "option 'relation': 'holes' is none of records, damage, segments"),
        ({"path": "store", "records": "audit"}, "option 'records': 'audit' is not NAME=BYTE"),
        ({"path": "store", "records": "audit=4"}, "option 'records' records: audit = 4: a record type is bound to a byte"),
        ({"path": "store", "records": "nobodys=200"}, "no installed plugin provides the record type 'nobodys'"),
        ({"path": "store", "taskSize": "big"}, "option 'taskSize': 'big' is not a size"),
        ({"path": "store", "taskSize": "0"}, "option 'taskSize': 0 bytes are too few"),
        ({"path": "store", "body": "nobodys"}, "no installed plugin provides the body codec 'nobodys'"),
    ],
)
def test_mistakes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], message: str
) -> None:
    written(tmp_path / "store", 3)
    (tmp_path / "empty").mkdir()
    if "path" in options and ":" not in options["path"]:
        options = options | {"path": str(tmp_path / options["path"])}
    with pytest.raises(PySparkException) as raised:
        spark.read.format("msgstore").options(**options).load()
    assert message in str(raised.value)


def test_registering_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    assert load(spark, written(tmp_path / "store", 10)).count() == 10


def test_a_directory_whose_settings_are_damaged(spark: SparkSession, tmp_path: Path) -> None:
    store = written(tmp_path / "store", 10, record="checksum")
    (store / "msgstore.json").write_text("{")
    assert [tuple(row) for row in load(spark, tmp_path, relation="damage").collect()] == [
        (str(store), "msgstore.json", None, 0, 1, "settings_damaged")
    ]
    assert load(spark, tmp_path).where("type = 4").count() == 10


POISON = """
from acme_audit_record.plugin import AuditOptions
from acme_audit_record.record import AuditRecord
from msgstore import hookimpl
from msgstore.contract import RecordTypeDescriptor

class Poison(AuditRecord):
    def check(self, data, offset, size):
        if b"message 7" in data[offset:offset + size]:
            raise ZeroDivisionError("seven")

@hookimpl
def msgstore_record_types():
    return [RecordTypeDescriptor(name="poison", contract=(1, 0), factory="acme_poison:Poison", format="v2",
                                 options=AuditOptions)]
"""

READS_POISON = """
    import json, sys
    from msgstore_spark import session
    with session("local[2]") as spark:
        read = spark.read.format("msgstore").option("records", "poison=201").load
        rows = read(sys.argv[1]).groupBy("file").count().collect()
        damage = spark.read.format("msgstore").options(relation="damage", records="poison=201").load(sys.argv[1])
        print(json.dumps([{row.file: row["count"] for row in rows}, [tuple(row)[1:] for row in damage.collect()]]))
"""


@pytest.mark.spark
def test_a_segment_on_which_a_plugin_fails_is_damage_and_the_job_goes_on(tmp_path: Path) -> None:
    site, store = tmp_path / "site", written(tmp_path / "store", 100, **AUDIT)
    info = site / "acme_poison-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_poison.py").write_text(POISON)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-poison\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[msgstore]\npoison = acme_poison\n")
    for path in store.glob("*.sqs"):
        data = bytearray(path.read_bytes())
        form = open_input(next(f for f in find_inputs(msgstore.load_catalogue(), [path]).inputs)).format
        for offset in form.scan(bytes(data)).records.offsets:
            data[offset] = 201
        path.write_bytes(data)
    (store / "msgstore.json").unlink()
    printed = clusters.run(READS_POISON, str(store), env={"PYTHONPATH": str(site)})
    rows, damage = json.loads(next(line for line in printed.splitlines() if line.startswith("[{")))
    bad = {path.name: path.stat().st_size for path in store.glob("*.sqs") if b"message 7" in path.read_bytes()}
    assert {(file, size) for file, _, _, size, _ in damage} == set(bad.items())
    assert all(reason.startswith("unreadable: ") and "ZeroDivisionError: seven" in reason for *_, reason in damage)
    assert rows.keys() == {path.name for path in store.glob("*.sqs")} - bad.keys() != set()


def test_what_is_in_a_brokers_messages(spark: SparkSession) -> None:
    top = DATA / "rabbitmq-3.10" / "clean"
    published = {
        (sent["exchange"], sent["routing_key"], sent["sha256"]): sent["properties"]
        for queue in json.loads((top / "manifest.json").read_text())["queues"]
        for sent in queue["expected"] + queue["gone"]
    }
    df = load(spark, top, body="erlang")
    assert df.columns[8:] == ["exchange", "routing_key", "properties", "payload"]
    rows = df.selectExpr("exchange", "routing_key", "sha2(payload, 256)", "properties").collect()
    assert {tuple(row)[:3] for row in rows} <= published.keys()
    assert len({row.exchange for row in rows}) > 2
    assert df.where("get_json_object(properties, '$.headers.nested.a') = 1 and payload is not null").count() > 0
