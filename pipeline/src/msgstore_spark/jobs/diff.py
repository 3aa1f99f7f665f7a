"""Comparison of stores on executors. They hash bodies; Spark shuffles ids and hashes, never a body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.jobs.columns.sums import fixed_width
from msgstore.jobs.diff import DIGEST, DiffJob, DiffReport, Side, digest
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore.jobs.tasks import pack
from msgstore_spark.tasks import map_tasks, segment_results, segment_rows, segment_schema

_SCHEMA = segment_schema(place=pa.int64(), id=pa.binary(), digest=pa.binary())


def diff(spark: SparkSession, job: DiffJob) -> DiffReport:
    """Run the job and return its report."""
    a, b = (_read(spark, found) for found in (job.found_a, job.found_b))
    compared = _first(a, "a").join(_first(b, "b"), "id", "full_outer").select("id", _kind()).persist(StorageLevel.DISK_ONLY)
    try:
        counts = {row.kind: row["count"] for row in compared.groupBy("kind").count().collect()}
        report = DiffReport(Side.of(job.a, job.found_a), Side.of(job.b, job.found_b), counts.get("same", 0))
        for side, found, read in ((report.a, job.found_a, a), (report.b, job.found_b, b)):
            damage = segment_results(read)
            for item in found.inputs:
                side.add_damage(item.path, damage[item.rank])
        for row in compared.where("kind != 'same'").orderBy("id").toLocalIterator():
            report.ids[row.kind].append(bytes(row.id))
    finally:
        for frame in (compared, a, b):
            frame.unpersist()
    report.count_messages()
    return report


def _read(spark: SparkSession, found: Found) -> DataFrame:
    return map_tasks(spark, _digests, pack(found.inputs), _SCHEMA).persist(StorageLevel.DISK_ONLY)


def _digests(_: int, task: Iterable[SegmentInput]) -> Iterator[pa.RecordBatch]:
    for item in task:
        found = digest(item)
        ids = fixed_width(found.records.ids)
        columns = {"place": pa.array(range(len(ids)), pa.int64()), "id": ids, "digest": fixed_width(found.digests, DIGEST)}
        yield from segment_rows(_SCHEMA, item.rank, columns, found.damage)


def _first(read: DataFrame, name: str) -> DataFrame:
    """Return (id, hash of its first copy) for each id; the hash is in the column ``name``."""
    first = sf.min(sf.struct("rank", "place", "digest")).alias("first")
    return read.where("result is null").groupBy("id").agg(first).select("id", sf.col("first.digest").alias(name))


def _kind() -> Column:
    same = sf.when(sf.col("a") == sf.col("b"), "same").otherwise("differing")
    return sf.when(sf.col("b").isNull(), "only_a").when(sf.col("a").isNull(), "only_b").otherwise(same).alias("kind")
