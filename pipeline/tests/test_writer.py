"""``df.write.format("msgstore")``: a new store of the rows, or an error and nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import msgstore
from msgstore_spark.options import WriteOptions
from msgstore_spark.writer import StoreWriter


def rows(spark: SparkSession, count: int, *more: str, partitions: int = 4) -> DataFrame:
    columns = ["unhex(lpad(hex(id), 32, '0')) as id", "encode(repeat(string(id), 20), 'utf-8') as body", *more]
    return spark.range(0, count, 1, partitions).selectExpr(*columns)


def save(frame: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    frame.write.format("msgstore").mode(mode).options(**options).save(str(path))


def content(path: Path, index: str = "ets") -> dict[bytes, tuple[bytes, int]]:
    with msgstore.open_store(path, mode="r", index=index) as store:
        assert store.stats().recovery.how in ("trust", "new")
        return {e.msg_id: (store.stored_body(e), e.references) for e in store.entries()}


def expected(count: int) -> dict[bytes, tuple[bytes, int]]:
    return {n.to_bytes(16, "big"): (str(n).encode() * 20, 1) for n in range(count)}


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_rows_become_new_store_only(spark, tmp_path, mode):
    """They are the same when they are read again."""
    save(rows(spark, 5000), tmp_path / "store", mode)
    with pytest.raises(PySparkException, match=r"is there already.*The option ifExists=ignore leaves it"):
        save(rows(spark, 10), tmp_path / "store", mode)
    assert content(tmp_path / "store") == expected(5000)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    read = spark.read.format("msgstore").load(str(tmp_path / "store")).select("id", "body").collect()
    assert {bytes(row.id): (bytes(row.body), 1) for row in read} == expected(5000)


def test_existing_store_can_be_left_alone(spark, tmp_path):
    for count in (10, 20):
        save(rows(spark, count), tmp_path / "store", ifExists="ignore")
        assert content(tmp_path / "store") == expected(10)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_options_and_references_are_used(spark, tmp_path):
    """Tasks write in the order of partitions; empty ones write nothing."""
    frame = rows(spark, 1000, "id % 3 + 1 as references", "1 as other", "now() as modified", partitions=3).repartition(
        3, "other"
    )
    keys = {"index": "lmdb", "record": "audit", "records": "audit=200", "fileSizeLimit": "64KiB", "ignoreOthers": "true"}
    save(frame, tmp_path / "store", **keys)
    found = content(tmp_path / "store", "lmdb")
    assert found == {msg_id: (body, n % 3 + 1) for n, (msg_id, (body, _)) in enumerate(expected(1000).items())}
    assert len(list((tmp_path / "store").glob("*.sqs"))) > 1


def test_repeated_rows_become_one_message(spark, tmp_path):
    frame = rows(spark, 300)
    counted = rows(spark, 300, "2 as references")
    save(counted.union(counted), tmp_path / "counted")
    assert content(tmp_path / "counted") == {msg_id: (body, 4) for msg_id, (body, _) in expected(300).items()}
    other = rows(spark, 300).selectExpr("id", "if(id = unhex(lpad('7', 32, '0')), encode('other', 'utf-8'), body) as body")
    with pytest.raises(PySparkException, match=f"the id {7:032x} comes with two bodies"):
        save(frame.union(other), tmp_path / "not")
    assert [path.name for path in tmp_path.iterdir()] == ["counted"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id as id", "body"], "the columns are: id "),
        (["msg as id", "body", "1 as size", "2 as type"], "leave out size, type, or .*the option ignoreOthers"),
        (
            ["if(id = 17, null, msg) as id", "body"],
            r"partition 1, row \d+: id is null\. .*msgstore convert SRC DEST --sink store",
        ),
        (["msg as id", "body", "if(id = 17, 0, 1) as references"], f"{17:032x} has 0 references"),
        (["'abc' as id", "body"], "the id 'abc' is not 32 hexadecimal digits"),
    ],
)
def test_row_without_message_is_refused(spark, tmp_path, columns, message):
    frame = spark.range(0, 30, 1, 2).selectExpr("id", "unhex(lpad(hex(id), 32, '0')) as msg", "encode('b', 'utf-8') as body")
    with pytest.raises(PySparkException, match=message):
        save(frame.selectExpr(*columns), tmp_path / "store")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"record": "hop"}, {"records": "hop=200"}])
def test_missing_record_type_names_option_and_host(tmp_path, monkeypatch, options):
    said = rf"option '{next(iter(options))}': no installed plugin provides the record type 'hop'"
    with pytest.raises(msgstore.PluginError, match=f"^{said}"):
        StoreWriter({"path": str(tmp_path / "store"), **options}, StructType().add("id", "binary").add("body", "binary"))
    writer = object.__new__(StoreWriter)  # as an executor gets it from a driver that has the plugin
    writer._target, writer._staging = WriteOptions.of({"path": str(tmp_path / "store"), **options}).target, str(tmp_path)
    monkeypatch.setattr("msgstore_spark.writer.TaskContext", SimpleNamespace(get=TaskContext))
    monkeypatch.setattr(TaskContext, "partitionId", lambda self: 0)
    with pytest.raises(msgstore.PluginError, match=rf"^on \S+ \(.*\): {said}.* check_executors\(spark\) compares"):
        writer.write(iter([]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the destination is missing"),
        ({"path": "s", "formt": "v2"}, "unknown option 'formt'; did you mean 'format'"),
        ({"path": "s", "ignoreOthers": "yes"}, "option 'ignoreOthers': 'yes' is none of false, true"),
        ({"path": "s", "fileSizeLimit": "much"}, "option 'fileSizeLimit': 'much' is not a size"),
    ],
)
def test_wrong_option_for_writing_is_refused(options, message):
    with pytest.raises(msgstore.ConfigError, match=message):
        WriteOptions.of(options)
