"""Reconciling on DataFrames: records and changes are brought together by id, and added up and counted where they then are.

Adding up both together is their full outer join, with one shuffle, of ids and numbers, never a body. It is done on Arrow
columns: ids that come once or twice would fill a hash table of Spark's before the shuffle, to no avail, and one more behind
it. What a task has to say of its segments travels along, in place of an id: ids have 16 bytes, and that has more.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession

from msgstore.jobs.classes import ROWS, WRITTEN_ROWS, add_to, classify, commit, rows_of_records, write
from msgstore.jobs.columns.ids import of_any_length
from msgstore.jobs.columns.sums import Sums
from msgstore.jobs.deltas import SCHEMA, Share, count_changes, read_share, weight
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.datasets import Writer, dataset
from msgstore.jobs.reading.intact_records import read_intact
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport, report_of
from msgstore.jobs.tasks import pack
from msgstore_spark.tasks import map_tasks

_ROWS = "id binary, number long, record boolean"
_SCHEMA = pa.schema([("id", pa.binary()), ("number", pa.int64()), ("record", pa.bool_())])
"""What is shuffled: the size of a record, or changes added up."""
_SAID = bytes(17)
"""What stands before something that is no id."""
_IN_MEMORY = 2**20
"""Rows that a worker keeps in memory: some 200 MB; there may be as many workers on a host as it has processors."""


def reconcile(spark: SparkSession, job: ReconcileJob) -> ReconcileReport:
    records = map_tasks(spark, _records, pack(job.found.inputs), _ROWS)
    changes = map_tasks(spark, partial(_changes, in_memory=_IN_MEMORY), job.shares, _ROWS)
    by_id = records.union(changes).repartition("id")
    with ExitStack() as stack:
        staging = stack.enter_context(dataset(job.to, [*job.sources, *job.deltas])) if job.to else None
        finish = partial(_finish, staging=None if staging is None else staging.path, in_memory=_IN_MEMORY)
        parts = [pickle.loads(row.part) for row in by_id.mapInArrow(finish, "part binary").collect()]
        said = dict(pair for _, _, pairs in parts for pair in pairs)
        total = count_changes((share, *said["share", number]) for number, share in enumerate(job.shares))
        report = report_of(job, ((item, said["segment", item.rank]) for item in job.found.inputs), total)
        for part, _, _ in parts:
            report.add(part)
        if staging is not None:
            commit(staging, [written for _, written, _ in parts if written is not None])
    return report


def _records(_: int, task: Iterable[SegmentInput]) -> Iterator[pa.RecordBatch]:
    for item in task:
        good = read_intact(item)
        yield from _rows(rows_of_records(good), "size", is_record=True)
        yield _say(("segment", item.rank), good.damage)


def _changes(number: int, share: Share, in_memory: int) -> Iterator[pa.RecordBatch]:
    rows = heavy = 0
    with Sums(SCHEMA, in_memory, _local_directory()) as sums:
        for batch in read_share(share):
            sums.add(batch)
            rows += batch.num_rows
            heavy += weight(batch)  # sums that do not fit into 64 bits are found by it, when all have been read
        for changes in sums.totals():
            yield from _rows(changes, "count", is_record=False)
    yield _say(("share", number), (rows, heavy))


def _rows(found: pa.Table | pa.RecordBatch, number: str, *, is_record: bool) -> Iterator[pa.RecordBatch]:
    of_kind = pa.repeat(pa.scalar(is_record), found.num_rows)
    return iter(pa.table([of_any_length(found["id"]), found[number], of_kind], schema=_SCHEMA).to_batches())


def _say(of: tuple[str, int], what: object) -> pa.RecordBatch:
    return pa.record_batch([[_SAID + pickle.dumps((of, what))], [0], [False]], schema=_SCHEMA)


def _finish(batches: Iterable[pa.RecordBatch], staging: str | None, in_memory: int) -> Iterator[pa.RecordBatch]:
    """One partition: its part of the report, what it wrote, and what was said."""
    report, said, written = ReconcileReport((), (), 0, 0), [], None
    with Sums(ROWS, in_memory, _local_directory()) as sums, ExitStack() as stack:
        writer = None
        for batch in batches:
            is_id = pc.equal(pc.binary_length(batch["id"]), 16)
            said += [pickle.loads(text[len(_SAID) :]) for text in batch.filter(pc.invert(is_id))["id"].to_pylist()]
            sums.add(_to_be_added(batch.filter(is_id)))
        for rows in sums.totals():
            classes = classify(rows)
            add_to(report, classes)
            if staging is not None:
                writer = writer or stack.enter_context(Writer(staging, _partition(), WRITTEN_ROWS))
                write(writer, classes)
        if writer is not None:
            written = writer.finish()
    yield pa.RecordBatch.from_pydict({"part": pa.array([pickle.dumps((report, written, said))], pa.binary())})


def _to_be_added(batch: pa.RecordBatch) -> pa.RecordBatch:
    ids, number, is_record = pc.cast(batch["id"], pa.binary(16)), batch["number"], batch["record"]
    count, size = pc.if_else(is_record, 0, number), pc.if_else(is_record, number, 0)
    return pa.record_batch([ids, count, pc.cast(is_record, pa.int64()), size], schema=ROWS)


def _local_directory() -> str | None:
    """Where Spark's workers keep what memory does not hold; it goes with the executor, whatever ends the worker."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()
