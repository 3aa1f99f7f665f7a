"""``spark.readStream.format("msgstore")``: stores that are written, torn, collected and deleted beneath a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

import msgstore
from msgstore_spark.options import ReadOptions
from msgstore_spark.source import MsgStoreSource
from msgstore_spark.stream import SegmentStreamReader


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


def test_what_is_new_and_nothing_twice(store, tmp_path):
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


def test_a_torn_tail_is_left_for_later(store, tmp_path):
    write(store, 1, 2, 3)
    store.close()
    [path] = (tmp_path / "store").glob("*.sqs")
    whole = path.read_bytes()
    stream = reader(tmp_path / "store")
    path.write_bytes(whole[:-5])
    first = stream.latestOffset({}, ReadAllAvailable())
    assert read(stream, {}, first) == [1, 2]
    path.write_bytes(whole[:-2])
    assert stream.latestOffset(first, ReadAllAvailable()) == first
    path.write_bytes(whole)
    second = stream.latestOffset(first, ReadAllAvailable())
    assert read(stream, first, second) == [3]


@pytest.mark.parametrize("read_first", [0, 25, 60])
def test_a_collector_beneath_a_stream_loses_nothing(store, tmp_path, read_first):
    """In whatever way it moves records: every one that is alive is read, wherever the stream stood."""
    stream, offset, seen = reader(tmp_path / "store"), {}, Counter[int]()
    write(store, *range(read_first))
    end = stream.latestOffset(offset, ReadAllAvailable())
    seen.update(read(stream, offset, end))
    planned = end
    write(store, *range(read_first, 90))
    offset, end = end, stream.latestOffset(end, ReadMaxFiles(1))
    gone = {n for n in range(90) if n % 3}
    with store.client("c") as client:
        client.remove([n.to_bytes(16) for n in gone])
    store.roll()
    store.compact(everything=True)
    seen.update(read(stream, offset, end))  # planned before, read after
    while (later := stream.latestOffset(end, ReadMaxFiles(1))) != end:
        seen.update(read(stream, end, later))
        end = later
    assert set(range(90)) - gone <= seen.keys()
    # A batch of before, run again after a restart, has no wrong bodies, which read() checks, and loses nothing by that.
    assert set(read(reader(tmp_path / "store"), {}, planned)) <= set(range(90))


def test_limits(store, tmp_path):
    write(store, *range(90))
    files = len(list((tmp_path / "store").glob("*.sqs")))
    stream, offset, steps = reader(tmp_path / "store", maxFilesPerTrigger="2"), {}, []
    assert stream.getDefaultReadLimit() == ReadMaxFiles(2)
    while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        steps.append(read(stream, offset, end))
        offset = end
    assert [n for step in steps for n in sorted(step)] == list(range(90)), "the oldest files come first"
    assert len(steps) == -(-files // 2)
    by_bytes = reader(tmp_path / "store", maxBytesPerTrigger="4500B")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(4500)
    assert len(by_bytes.latestOffset({}, ReadMaxBytes(4500))) == 2
    assert len(by_bytes.latestOffset({}, ReadMaxBytes(1))) == 1
    assert len(by_bytes.latestOffset({}, ReadAllAvailable())) == files
    assert reader(tmp_path / "store").getDefaultReadLimit() == ReadAllAvailable()
    with pytest.raises(msgstore.ConfigError, match="one of the options"):
        ReadOptions.of({"path": "x", "maxFilesPerTrigger": "1", "maxBytesPerTrigger": "1"})


def test_available_now_ends_where_it_began(store, tmp_path):
    write(store, *range(50))
    stream, offset, seen = reader(tmp_path / "store"), {}, []
    stream.prepareForTriggerAvailableNow()
    write(store, *range(50, 90))
    while (end := stream.latestOffset(offset, ReadMaxFiles(1))) != offset:
        seen += read(stream, offset, end)
        offset = end
    assert sorted(seen) == list(range(50))
    rest = reader(tmp_path / "store")
    assert sorted(seen + read(rest, offset, rest.latestOffset(offset, ReadAllAvailable()))) == list(range(90))


def test_a_query_restarts_from_its_checkpoint(spark, store, tmp_path):
    def run() -> Counter[int]:
        stream = spark.readStream.format("msgstore").option("maxFilesPerTrigger", 2).load(str(tmp_path / "store"))
        query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(120)
        rows = spark.read.schema("id binary").parquet(str(tmp_path / "out")).collect()
        return Counter(int.from_bytes(row.id) for row in rows)

    write(store, *range(60))
    assert run() == Counter(range(60))
    assert run() == Counter(range(60))
    write(store, *range(60, 90))
    assert run() == Counter(range(90))


def test_a_stream_has_records_only(spark, store, tmp_path):
    write(store, 1)
    stream = spark.readStream.format("msgstore").option("relation", "damage").load(str(tmp_path / "store"))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="a stream has records only; read the relation 'damage'"):
        query.trigger(availableNow=True).start().awaitTermination(120)
