"""Inventory on executors: each scans its segments. Ids are shuffled only if counts are given, to find live records."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator
from functools import partial

import attrs
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.inventory import InventoryJob, ScannedSegment, report_of, scan_for_inventory
from msgstore.jobs.inventory_report import InventoryReport
from msgstore.jobs.tasks import pack
from msgstore_spark.counts import read_counts
from msgstore_spark.tasks import map_tasks

_READ = "rank long, place long, size long, id binary, segment binary"
_ARROW = pa.schema(
    [("rank", pa.int64()), ("place", pa.int64()), ("size", pa.int64()), ("id", pa.binary()), ("segment", pa.binary())]
)


def inventory(spark: SparkSession, job: InventoryJob) -> InventoryReport:
    """Run the job and return its report."""
    with_ids = job.counts is not None
    read = map_tasks(spark, partial(_read, with_ids=with_ids), pack(job.found.inputs), _READ)
    if with_ids:
        read = read.persist(StorageLevel.DISK_ONLY)
    try:
        segments = {row.rank: pickle.loads(row.segment) for row in read.where("segment is not null").collect()}
        live = {} if job.counts is None else _live(spark, job, read.where("segment is null"), job.counts)
    finally:
        if with_ids:
            read.unpersist()
    return report_of(
        job, ((item, segments[item.rank], live.get(item.rank, (0, 0)) if with_ids else None) for item in job.found.inputs)
    )


def _read(_: int, task: Iterable[SegmentInput], with_ids: bool) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of a segment if ``with_ids``, then one for the segment."""
    for item in task:
        scanned = scan_for_inventory(item, with_ids=with_ids)
        if scanned is not None and scanned.ids:
            yield _record_batch(item.rank, scanned)
        result = pickle.dumps(None if scanned is None else attrs.evolve(scanned, ids=b"", sizes=array("Q")))
        values = [[item.rank], [None], [None], [None], [result]]
        yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, _ARROW, strict=True)], schema=_ARROW)


def _record_batch(rank: int, scanned: ScannedSegment) -> pa.RecordBatch:
    count = len(scanned.sizes)
    ids = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(scanned.ids)]).cast(pa.binary())
    sizes = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(scanned.sizes)])
    ranks, places = pa.repeat(pa.scalar(rank, pa.int64()), count), pa.array(range(count), pa.int64())
    return pa.RecordBatch.from_arrays([ranks, places, sizes, ids, pa.nulls(count, pa.binary())], schema=_ARROW)


def _live(spark: SparkSession, job: InventoryJob, records: DataFrame, counts: str) -> dict[int, tuple[int, int]]:
    """Return (live records, their bytes) by rank. Live is the first copy, in each store, of an id that has references."""
    first_ranks: dict[str, int] = {}
    stores = [(item.rank, first_ranks.setdefault(item.store, item.rank)) for item in job.found.inputs]
    with_store = records.join(sf.broadcast(spark.createDataFrame(stores, "rank long, store long")), "rank")
    referenced = with_store.join(read_counts(spark, counts).select("id"), "id", "left_semi")
    first = referenced.groupBy("store", "id").agg(sf.min(sf.struct("rank", "place", "size")).alias("first")).select("first.*")
    found = first.groupBy("rank").agg(sf.count("*").alias("records"), sf.sum("size").alias("bytes")).collect()
    return {row.rank: (row.records, row.bytes) for row in found}
