"""Inventory on executors: each scans its segments. Ids are shuffled only if counts are given, to find live records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import attrs
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.contract import Columns
from msgstore.jobs.columns.sums import fixed_width, int64
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.inventory import InventoryJob, InventoryReport, report_of
from msgstore.jobs.reading.segment_check import judge
from msgstore.jobs.tasks import pack
from msgstore_spark.counts import read_counts
from msgstore_spark.tasks import map_tasks, segment_results, segment_rows, segment_schema

_SCHEMA = segment_schema(place=pa.int64(), size=pa.int64(), id=pa.binary())


def inventory(spark: SparkSession, job: InventoryJob) -> InventoryReport:
    """Run the job and return its report."""
    with_ids = job.counts is not None
    read = map_tasks(spark, partial(_read, with_ids=with_ids), pack(job.found.inputs), _SCHEMA)
    if with_ids:
        read = read.persist(StorageLevel.DISK_ONLY)
    try:
        segments = segment_results(read)
        live = {} if job.counts is None else _live(spark, job, read.where("result is null"), job.counts)
    finally:
        if with_ids:
            read.unpersist()
    if with_ids:
        for rank, found in segments.items():
            found.stock.live, found.stock.live_bytes = live.get(rank, (0, 0))
    return report_of(job, ((item, segments[item.rank]) for item in job.found.inputs))


def _read(_: int, task: Iterable[SegmentInput], with_ids: bool) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of a segment if ``with_ids``, then one for the segment."""
    for item in task:
        found = judge(item, with_records=with_ids)
        records = found.records
        places = pa.array(range(len(records)), pa.int64())
        columns = {"place": places, "size": int64(records.sizes), "id": fixed_width(records.ids)}
        yield from segment_rows(_SCHEMA, item.rank, columns, attrs.evolve(found, records=Columns()))


def _live(spark: SparkSession, job: InventoryJob, records: DataFrame, counts: str) -> dict[int, tuple[int, int]]:
    """Return (live records, their bytes) by rank. Live is the first copy, in each store, of an id that has references."""
    first_ranks: dict[str, int] = {}
    stores = [(item.rank, first_ranks.setdefault(item.store, item.rank)) for item in job.found.inputs]
    with_store = records.join(sf.broadcast(spark.createDataFrame(stores, "rank long, store long")), "rank")
    referenced = with_store.join(read_counts(spark, counts).select("id"), "id", "left_semi")
    first = referenced.groupBy("store", "id").agg(sf.min(sf.struct("rank", "place", "size")).alias("first")).select("first.*")
    found = first.groupBy("rank").agg(sf.count("*").alias("records"), sf.sum("size").alias("bytes")).collect()
    return {row.rank: (row.records, row.bytes) for row in found}
