"""Reconcile job on DataFrames: records and changes are shuffled by id, and aggregated after the shuffle.

Aggregating both together is their full outer join. It needs one shuffle of ids and numbers, never of a body. It is done on
Arrow columns, not by Spark: nearly every id comes once or twice, so a partial aggregation before the shuffle would fill a hash
table without reducing the rows. A task sends the results for its segments with the rows, in place of an id. Such a value has
more than 16 bytes, which distinguishes it from an id.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession

from msgstore.jobs.classes import ROWS, commit, finish, rows_of_records, staging_of
from msgstore.jobs.columns.sums import IdAggregator, of_any_length
from msgstore.jobs.counts import read_share
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.segment_check import read_intact
from msgstore.jobs.reading.shares import Share
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport, report_of
from msgstore.jobs.tasks import pack
from msgstore_spark.tasks import map_tasks

_SCHEMA = pa.schema({"id": pa.binary(), "number": pa.int64(), "record": pa.bool_()})
"""Shuffled rows. ``number`` is the size of a record, or the sum of the changes of an id."""
_CHANGES = pa.schema({"id": pa.binary(16), "count": pa.int64()})
_RESULT_PREFIX = bytes(17)
"""Prefix of a value in the column ``id`` that is a pickled result."""
_MAX_ROWS_IN_MEMORY = 2**20
"""Rows that a worker keeps in memory, some 200 MB. A host may have as many workers as CPUs."""


def reconcile(spark: SparkSession, job: ReconcileJob) -> ReconcileReport:
    """Run the job and return its report."""
    records = map_tasks(spark, _records, pack(job.found.inputs), _SCHEMA)
    changes = map_tasks(spark, partial(_changes, in_memory=_MAX_ROWS_IN_MEMORY), job.shares, _SCHEMA)
    by_id = records.union(changes).repartition("id")
    with staging_of(job) as staging:
        finish_partition = partial(_finish, staging=staging.path if staging else None, in_memory=_MAX_ROWS_IN_MEMORY)
        parts = [pickle.loads(row.part) for row in by_id.mapInArrow(finish_partition, "part binary").collect()]
        results = dict(pair for _, _, pairs in parts for pair in pairs)
        total = sum(results["share", number] for number in range(len(job.shares)))
        report = report_of(job, ((item, results["segment", item.rank]) for item in job.found.inputs), total)
        for part, _, _ in parts:
            report.add(part)
        if staging:
            commit(staging, [attempt for _, written, _ in parts for attempt in written])
    return report


def _records(_: int, task: Iterable[SegmentInput]) -> Iterator[pa.RecordBatch]:
    for item in task:
        good = read_intact(item)
        yield from _rows(rows_of_records(good), "size", is_record=True)
        yield _result_row(("segment", item.rank), good.damage)


def _changes(number: int, share: Share, in_memory: int) -> Iterator[pa.RecordBatch]:
    rows = 0
    with IdAggregator(_CHANGES, in_memory, _local_directory()) as sums:
        for batch in read_share(share):
            sums.add(batch)
            rows += batch.num_rows
        for changes in sums.totals():
            yield from _rows(changes, "count", is_record=False)
    yield _result_row(("share", number), rows)


def _rows(found: pa.Table | pa.RecordBatch, number: str, *, is_record: bool) -> Iterator[pa.RecordBatch]:
    kinds = pa.repeat(pa.scalar(is_record), found.num_rows)
    return iter(pa.table([of_any_length(found["id"]), found[number], kinds], schema=_SCHEMA).to_batches())


def _result_row(key: tuple[str, int], result: object) -> pa.RecordBatch:
    return pa.record_batch([[_RESULT_PREFIX + pickle.dumps((key, result))], [0], [False]], schema=_SCHEMA)


def _finish(batches: Iterable[pa.RecordBatch], staging: str | None, in_memory: int) -> Iterator[pa.RecordBatch]:
    """Aggregate one partition. Yield its part of the report, the files that it wrote, and the results that it received."""
    report, results = ReconcileReport((), (), 0, 0), []
    with IdAggregator(ROWS, in_memory, _local_directory()) as sums:
        for batch in batches:
            is_id = pc.equal(pc.binary_length(batch["id"]), 16)
            pickled = batch.filter(pc.invert(is_id))["id"].to_pylist()
            results += [pickle.loads(value[len(_RESULT_PREFIX) :]) for value in pickled]
            sums.add(_aggregation_rows(batch.filter(is_id)))
        written = finish(sums, report, staging, _partition())
    yield pa.RecordBatch.from_pydict({"part": pa.array([pickle.dumps((report, written, results))], pa.binary())})


def _aggregation_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert shuffled rows into rows of (id, change of the count, records, bytes), which can be added."""
    ids, number, is_record = pc.cast(batch["id"], pa.binary(16)), batch["number"], batch["record"]
    count, size = pc.if_else(is_record, 0, number), pc.if_else(is_record, number, 0)
    return pa.record_batch([ids, count, pc.cast(is_record, pa.int64()), size], schema=ROWS)


def _local_directory() -> str | None:
    """Return the directory for temporary files of Spark's workers, or None. The executor deletes it, even if a worker dies."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()
