"""Comparison of stores on executors. They hash bodies; Spark shuffles ids and hashes, never a body."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.jobs.diff import DIGEST, KINDS, DiffJob, DiffReport, Digests, Side, digest, side_of
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore.jobs.tasks import pack
from msgstore_spark.tasks import map_tasks

_READ = "rank long, place long, id binary, digest binary, damage binary"
_ARROW = pa.schema(
    [("rank", pa.int64()), ("place", pa.int64()), ("id", pa.binary()), ("digest", pa.binary()), ("damage", pa.binary())]
)


def diff(spark: SparkSession, job: DiffJob) -> DiffReport:
    """Run the job and return its report."""
    a, b = (_read(spark, found) for found in (job.found_a, job.found_b))
    compared = _first(a, "a").join(_first(b, "b"), "id", "full_outer").select("id", _kind()).persist(StorageLevel.DISK_ONLY)
    try:
        counts = {row.kind: row["count"] for row in compared.groupBy("kind").count().collect()}
        report = DiffReport(_side(job.a, job.found_a, a), _side(job.b, job.found_b, b), counts.get("same", 0))
        for row in compared.where("kind != 'same'").orderBy("id").toLocalIterator():
            report.ids[row.kind].append(bytes(row.id))
    finally:
        for frame in (compared, a, b):
            frame.unpersist()
    both = counts.get("same", 0) + counts.get("differing", 0)
    report.a.messages, report.b.messages = (both + counts.get(kind, 0) for kind in KINDS[1:])
    return report


def _read(spark: SparkSession, found: Found) -> DataFrame:
    return map_tasks(spark, _digests, pack(found.inputs), _READ).persist(StorageLevel.DISK_ONLY)


def _digests(_: int, task: Iterable[SegmentInput]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each intact record of a segment, then one for the segment."""
    for item in task:
        found = digest(item)
        yield _record_batch(item.rank, found)
        values = [[item.rank], [None], [None], [None], [pickle.dumps(found.damage)]]
        yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, _ARROW, strict=True)], schema=_ARROW)


def _record_batch(rank: int, found: Digests) -> pa.RecordBatch:
    count = len(found.ids) // 16
    ids = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(found.ids)]).cast(pa.binary())
    digests = pa.Array.from_buffers(pa.binary(DIGEST), count, [None, pa.py_buffer(found.digests)]).cast(pa.binary())
    ranks, places = pa.repeat(pa.scalar(rank, pa.int64()), count), pa.array(range(count), pa.int64())
    return pa.RecordBatch.from_arrays([ranks, places, ids, digests, pa.nulls(count, pa.binary())], schema=_ARROW)


def _first(read: DataFrame, name: str) -> DataFrame:
    """Return (id, hash of its first copy) for each id; the hash is in the column ``name``."""
    first = sf.min(sf.struct("rank", "place", "digest")).alias("first")
    return read.where("damage is null").groupBy("id").agg(first).select("id", sf.col("first.digest").alias(name))


def _kind() -> Column:
    same = sf.when(sf.col("a") == sf.col("b"), "same").otherwise("differing")
    return sf.when(sf.col("b").isNull(), "only_a").when(sf.col("a").isNull(), "only_b").otherwise(same).alias("kind")


def _side(path: str, found: Found, read: DataFrame) -> Side:
    damage = {row.rank: pickle.loads(row.damage) for row in read.where("damage is not null").collect()}
    return side_of(path, found, ((item, damage[item.rank]) for item in found.inputs))
