"""Jobs of :mod:`msgstore.jobs` on DataFrames: core processes segments in tasks, Spark shuffles and joins their rows.

Rows have ids, hashes and numbers, never a body. :mod:`msgstore_spark.salvage` has the one job that writes a store.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.contract import Columns, ConfigError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.jobs import classes
from msgstore.jobs.columns.sums import IdAggregator, fixed_width, int64, of_any_length
from msgstore.jobs.counts import check_weights, find_splits, read_split, weight_of
from msgstore.jobs.diff import DIGEST, DiffJob, DiffReport, Side, digest
from msgstore.jobs.inputs import JobInputs, SegmentInput
from msgstore.jobs.inventory import InventoryJob, InventoryReport, report_of
from msgstore.jobs.reading.segment_check import IntactRecords, check_segment, read_intact
from msgstore.jobs.reading.splits import FileSplit
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.reconcile import report_of as reconcile_report_of
from msgstore.jobs.tasks import group_into_tasks
from msgstore_spark.tasks import (
    IS_RECORD,
    SegmentRows,
    first_copies,
    map_tasks,
    on_disk,
    read_segments,
    require_directory,
    segment_results,
)

# -- files of counts ----------------------------------------------------------------------------------------------------------


def read_counts(spark: SparkSession, path: str) -> DataFrame:
    """Return (id binary, count long) of each id with at least one reference. Executors read the file; rows of one id are added.

    Raises ConfigError if an id has more references than a store can count. An invalid line or row fails the task.
    """
    read = map_tasks(spark, _read_counts, find_splits([path]), pa.schema({"id": pa.binary(), "count": pa.int64()}))
    sums = read.groupBy("id").agg(sf.sum(sf.col("count").cast("decimal(38,0)")).alias("count"))
    many = sums.where(f"count > {MAX_REFERENCES}").head()
    if many is not None:
        raise ConfigError(
            f"{path}: refcounts: {bytes(many.id).hex()} has {many['count']} references; at most {MAX_REFERENCES} are counted"
        )
    return sums.where("count > 0").withColumn("count", sf.col("count").cast("long"))


def _read_counts(_: int, split: FileSplit) -> Iterator[pa.RecordBatch]:
    for batch in read_split(split):
        yield pa.RecordBatch.from_arrays([pc.cast(batch.column(0), pa.binary()), batch.column(1)], ["id", "count"])


# -- diff ---------------------------------------------------------------------------------------------------------------------


def diff(spark: SparkSession, job: DiffJob) -> DiffReport:
    """Run the job and return its report."""
    a, b = (
        read_segments(
            spark, partial(_digests, examine=partial(digest, body=body)), group_into_tasks(found.inputs), digest=pa.binary()
        )
        for found, body in ((job.found_a, job.body_a), (job.found_b, job.body_b))
    )
    first_a, first_b = (
        first_copies(read.where(IS_RECORD), found.inputs, "digest").withColumnRenamed("digest", name)
        for name, read, found in (("a", a, job.found_a), ("b", b, job.found_b))
    )
    same = sf.when(sf.col("a") == sf.col("b"), "same").otherwise("differing")
    kind = sf.when(sf.col("b").isNull(), "only_a").when(sf.col("a").isNull(), "only_b").otherwise(same).alias("kind")
    compared = first_a.join(first_b, "id", "full_outer").select("id", kind)
    with on_disk(a, b, compared):
        counts = {row.kind: row["count"] for row in compared.groupBy("kind").count().collect()}
        sides = (_side(job.a, job.found_a, a), _side(job.b, job.found_b, b))
        report = DiffReport(*sides, counts.get("same", 0))
        for row in compared.where("kind != 'same'").orderBy("id").toLocalIterator():
            report.ids[row.kind].append(bytes(row.id))
    job.check_no_writer_since()
    report.count_messages()
    return report


def _digests(item: SegmentInput, examine: Callable[[SegmentInput], IntactRecords]) -> SegmentRows:
    found = examine(item)
    return found.records, {"digest": fixed_width(found.digests, DIGEST)}, found.damage


def _side(path: str, found: JobInputs, read: DataFrame) -> Side:
    side, damage = Side.of(path, found), segment_results(read)
    for item in found.inputs:
        side.add_damage(item.path, damage[item.rank])
    return side


# -- inventory ----------------------------------------------------------------------------------------------------------------


def inventory(spark: SparkSession, job: InventoryJob) -> InventoryReport:
    """Run the job and return its report. Ids are shuffled only if counts are given, to find live records."""
    with_ids = job.counts is not None
    read = read_segments(spark, partial(_scan, with_ids=with_ids), group_into_tasks(job.found.inputs), size=pa.int64())
    with on_disk(read if with_ids else None):
        segments = segment_results(read)
        if job.counts is not None:
            live = _live(spark, job, read.where(IS_RECORD), job.counts)
            for rank, found in segments.items():
                found.segment.live, found.segment.live_bytes = live.get(rank, (0, 0))
    return report_of(job, ((item, segments[item.rank]) for item in job.found.inputs))


def _scan(item: SegmentInput, with_ids: bool) -> SegmentRows:
    found = check_segment(item, with_records=with_ids)
    return found.records, {"size": int64(found.records.sizes)}, attrs.evolve(found, records=Columns())


def _live(spark: SparkSession, job: InventoryJob, records: DataFrame, counts: str) -> dict[int, tuple[int, int]]:
    """Return (live records, their bytes) by rank. Live is the first copy, in each store, of an id that has references."""
    first_ranks: dict[str, int] = {}
    stores = [(item.rank, first_ranks.setdefault(item.store, item.rank)) for item in job.found.inputs]
    with_store = records.join(sf.broadcast(spark.createDataFrame(stores, "rank long, store long")), "rank")
    referenced = with_store.join(read_counts(spark, counts).select("id"), "id", "left_semi")
    first = first_copies(referenced, job.found.inputs, "rank", "size", store="store")
    found = first.groupBy("rank").agg(sf.count("*").alias("records"), sf.sum("size").alias("bytes")).collect()
    return {row.rank: (row.records, row.bytes) for row in found}


# -- reconcile ----------------------------------------------------------------------------------------------------------------

_SHUFFLED = pa.schema({"id": pa.binary(), "number": pa.int64(), "record": pa.bool_()})
"""``number`` is the size of a record, or the sum of the changes of an id."""
_CHANGES = pa.schema({"id": pa.binary(16), "count": pa.int64()})
_RESULT_PREFIX = bytes(17)
"""Prefix of a value in the column ``id`` that is a pickled result: longer than an id."""
_MAX_ROWS_IN_MEMORY = 2**20
"""Rows that a worker keeps in memory, some 200 MB. A host may have as many workers as CPUs."""


def reconcile(spark: SparkSession, job: ReconcileJob) -> ReconcileReport:
    """Run the job and return its report.

    Aggregating records and changes together is their full outer join. It needs one shuffle of ids and numbers. It is done on
    Arrow columns, not by Spark: nearly every id comes once or twice, so a partial aggregation before the shuffle would fill a
    hash table without reducing the rows. A task sends the results for its segments with the rows, in place of an id.
    """
    records = map_tasks(spark, _records, group_into_tasks(job.found.inputs), _SHUFFLED)
    changes = map_tasks(spark, partial(_changes, in_memory=_MAX_ROWS_IN_MEMORY), job.splits, _SHUFFLED)
    by_id = records.union(changes).repartition("id")
    with classes.staging_of(job) as staging:
        finish_partition = partial(_finish, staging=staging.path if staging else None, in_memory=_MAX_ROWS_IN_MEMORY)
        parts = [pickle.loads(row.part) for row in by_id.mapInArrow(finish_partition, "part binary").collect()]
        results = dict(pair for _, _, pairs in parts for pair in pairs)
        counted = [results["split", number] for number in range(len(job.splits))]
        check_weights((split, weight) for split, (_, weight) in zip(job.splits, counted, strict=True))
        total = sum(rows for rows, _ in counted)
        report = reconcile_report_of(job, ((item, results["segment", item.rank]) for item in job.found.inputs), total)
        for part, _, _ in parts:
            report.add(part)
        if staging:
            classes.commit(job, staging, [attempt for _, written, _ in parts for attempt in written])
    return report


def _records(_: int, task: Iterable[SegmentInput]) -> Iterator[pa.RecordBatch]:
    for item in task:
        require_directory(item.path)
        good = read_intact(item)
        yield from _rows(classes.rows_of_records(good), "size", is_record=True)
        yield _result_row(("segment", item.rank), good.damage)


def _changes(number: int, split: FileSplit, in_memory: int) -> Iterator[pa.RecordBatch]:
    rows, weight = 0, 0.0
    with IdAggregator(_CHANGES, in_memory, _local_directory()) as sums:
        for batch in read_split(split):
            sums.add(batch)
            rows += batch.num_rows
            weight += weight_of(batch)
        for changes in sums.totals():
            yield from _rows(changes, "count", is_record=False)
    yield _result_row(("split", number), (rows, weight))


def _rows(found: pa.Table | pa.RecordBatch, number: str, *, is_record: bool) -> Iterator[pa.RecordBatch]:
    kinds = pa.repeat(pa.scalar(is_record), found.num_rows)
    return iter(pa.table([of_any_length(found["id"]), found[number], kinds], schema=_SHUFFLED).to_batches())


def _result_row(key: tuple[str, int], result: object) -> pa.RecordBatch:
    return pa.record_batch([[_RESULT_PREFIX + pickle.dumps((key, result))], [0], [False]], schema=_SHUFFLED)


def _finish(batches: Iterable[pa.RecordBatch], staging: str | None, in_memory: int) -> Iterator[pa.RecordBatch]:
    """Aggregate one partition. Yield its part of the report, the files that it wrote, and the results that it received."""
    report, results = ReconcileReport((), (), 0, 0), []
    context = TaskContext.get()
    assert context is not None
    with IdAggregator(classes.ROWS, in_memory, _local_directory()) as sums:
        for batch in batches:
            is_id = pc.equal(pc.binary_length(batch["id"]), 16)
            pickled = batch.filter(pc.invert(is_id))["id"].to_pylist()
            results += [pickle.loads(value[len(_RESULT_PREFIX) :]) for value in pickled]
            ids, number, is_record = batch.filter(is_id).columns
            count, size = pc.if_else(is_record, 0, number), pc.if_else(is_record, number, 0)
            columns = [pc.cast(ids, pa.binary(16)), count, pc.cast(is_record, pa.int64()), size]
            sums.add(pa.record_batch(columns, schema=classes.ROWS))
        written = classes.finish(sums, report, staging, context.partitionId())
    yield pa.RecordBatch.from_pydict({"part": pa.array([pickle.dumps((report, written, results))], pa.binary())})


def _local_directory() -> str | None:
    """Return the directory for temporary files of Spark's workers, or None. The executor deletes it, even if a worker dies."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
