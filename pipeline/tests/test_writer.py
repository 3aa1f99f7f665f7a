"""Writing a store from a DataFrame: whole or not there, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import msgstore


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
def test_a_fresh_store(spark, tmp_path, mode):
    save(rows(spark, 5000), tmp_path / "store", mode)
    assert content(tmp_path / "store") == expected(5000)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    with pytest.raises(PySparkException, match="is there already"):
        save(rows(spark, 10), tmp_path / "store", mode)
    assert content(tmp_path / "store") == expected(5000)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_options_and_references(spark, tmp_path):
    """Tasks write in the order of partitions; empty ones are none."""
    frame = rows(spark, 1000, "id % 3 + 1 as references", "1 as other", partitions=3).repartition(3, "other")
    keys = {"index": "lmdb", "record": "audit", "records": "audit=200", "fileSizeLimit": "64KiB", "ignoreOthers": "true"}
    save(frame, tmp_path / "store", **keys)
    found = content(tmp_path / "store", "lmdb")
    assert found == {msg_id: (body, n % 3 + 1) for n, (msg_id, (body, _)) in enumerate(expected(1000).items())}
    assert len(list((tmp_path / "store").glob("*.sqs"))) > 1


def test_rows_that_come_twice(spark, tmp_path):
    frame = rows(spark, 300)
    save(frame.union(frame), tmp_path / "once")
    assert content(tmp_path / "once") == expected(300)
    counted = rows(spark, 300, "2 as references")
    save(counted.union(counted), tmp_path / "counted")
    assert {count for _, count in content(tmp_path / "counted").values()} == {4}
    other = rows(spark, 300).selectExpr("id", "if(id = unhex(lpad('7', 32, '0')), encode('other', 'utf-8'), body) as body")
    with pytest.raises(PySparkException, match=f"the id {7:032x} comes with two bodies"):
        save(frame.union(other), tmp_path / "not")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counted", "once"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id as id", "body"], "the column 'id' is int64"),
        (["msg as id"], "there is no column 'body'"),
        (["msg as id", "body", "1 as size", "2 as type"], "leave out size, type, or .*the option ignoreOthers"),
        (["msg as id", "string(body) as body"], "the column 'body' is string"),
        (["if(id = 17, null, msg) as id", "body"], r"partition 1, row \d+: there is no id \(null\)"),
        (["msg as id", "if(id = 17, null, body) as body"], f"the message {17:032x} has no body"),
        (["msg as id", "body", "if(id = 17, 0, 1) as references"], f"{17:032x} has 0 references"),
        (["substring(msg, 2) as id", "body"], r"row 0: the id 0{28}0[0f] has 15 bytes, not 16"),
        (["'abc' as id", "body"], "the id 'abc' is not 32 hexadecimal digits"),
    ],
)
def test_what_is_no_message(spark, tmp_path, columns, message):
    frame = spark.range(0, 30, 1, 2).selectExpr("id", "unhex(lpad(hex(id), 32, '0')) as msg", "encode('b', 'utf-8') as body")
    with pytest.raises(PySparkException, match=message):
        save(frame.selectExpr(*columns), tmp_path / "store")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formt": "v2"}, "there is no option 'formt' for writing; did you mean 'format'"),
        ({"format": "v9"}, "v9"),
        ({"records": "audit"}, "is not a list of record types"),
        ({"ignoreOthers": "yes"}, "neither true nor false"),
        ({"fileSizeLimit": "much"}, "fileSizeLimit"),
    ],
)
def test_options_that_are_none(spark, tmp_path, options, message):
    with pytest.raises(PySparkException, match=message):
        save(rows(spark, 10), tmp_path / "store", **options)
    assert not list(tmp_path.iterdir())
