"""``spark.readStream.format("msgstore")``: stores that are written, torn, collected and deleted during a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

import msgstore
from msgstore_spark.source import MsgStoreSource, SegmentStreamReader


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
    assert sorted(n for batch in batches for n in batch) == list(range(50))
    rest, _ = read_on(reader(tmp_path / "store"), offset, ReadAllAvailable())
    assert sorted(n for batch in batches + rest for n in batch) == list(range(90))


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
    with pytest.raises(msgstore.ConfigError, match="a stream has records only; read the relation 'damage'"):
        reader(tmp_path / "store", relation="damage")
