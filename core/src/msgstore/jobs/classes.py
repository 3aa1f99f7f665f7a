"""Execution of :mod:`msgstore.jobs.reconcile`: records and changes of counts as columns, and the class of each id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import Damage
from msgstore.jobs.columns.arrays import fixed_width, int64, of_any_length
from msgstore.jobs.columns.sums import IdAggregator
from msgstore.jobs.deltas import read_share
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.datasets import DatasetStaging, DatasetWriter, Written, dataset, folder
from msgstore.jobs.reading.segment_check import IntactRecords, read_intact
from msgstore.jobs.reconcile import CLASSES, NAMED, WRITTEN, ClassReport, ReconcileJob, ReconcileReport, report_of
from msgstore.jobs.tasks import Meter, Run, Task, map_segments, pack

ROWS = pa.schema([("id", pa.binary(16)), ("count", pa.int64()), ("records", pa.int64()), ("size", pa.int64())])
"""A record or a change. Grouping both by id is their full outer join, at half the cost."""
WRITTEN_ROWS = pa.schema([("id", pa.binary()), ("count", pa.int64()), ("records", pa.int64())])


def rows_of_records(good: IntactRecords) -> pa.RecordBatch:
    count = len(good.records)
    columns = [fixed_width(good.records.ids), _all(0, count), _all(1, count), int64(good.records.sizes)]
    return pa.record_batch(columns, schema=ROWS)


def rows_of_changes(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch of :mod:`msgstore.jobs.deltas`."""
    zeros = _all(0, changes.num_rows)
    return pa.record_batch([*changes.columns, zeros, zeros], schema=ROWS)


def _all(value: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), count)


def classify(rows: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each class. In ``rows``, each id comes once."""
    count, is_there = rows["count"], pc.greater(rows["records"], 0)
    referred, unreferred = pc.greater(count, 0), pc.equal(count, 0)
    masks = {
        "live": pc.and_(referred, is_there),
        "orphan": pc.and_(unreferred, is_there),
        "dangling": pc.and_not(referred, is_there),
        "negative": pc.less(count, 0),
        "settled": pc.and_not(unreferred, is_there),
    }
    return {name: rows.filter(masks[name]) for name in CLASSES}


def add_to(report: ReconcileReport, classes: Mapping[str, pa.Table]) -> None:
    """Add the rows of each class to the totals of the report."""
    for name, rows in classes.items():
        references, records, size = (pc.sum(rows[column]).as_py() or 0 for column in ("count", "records", "size"))
        report.classes[name].add(ClassReport(name, rows.num_rows, references, records, size))
    for name in report.named:
        report.name(name, _first(classes[name]))


def finish(sums: IdAggregator, report: ReconcileReport, staging: str | None, task: int) -> list[Written]:
    """Add every id of ``sums`` to its class, and write it into the folder of the class, if there is a ``staging`` directory.

    Raises StoreIOError.
    """
    with ExitStack() as stack:
        writer = None
        for rows in sums.totals():
            classes = classify(rows)
            add_to(report, classes)
            if staging is not None:
                writer = writer or stack.enter_context(DatasetWriter(staging, task, WRITTEN_ROWS))
                for name in WRITTEN:
                    if classes[name].num_rows:
                        columns = [of_any_length(classes[name]["id"]), classes[name]["count"], classes[name]["records"]]
                        writer.write(folder([("class", name)]), pa.table(columns, schema=WRITTEN_ROWS))
        return [writer.finish()] if writer else []


def commit(staging: DatasetStaging, written: Sequence[Written]) -> None:
    """Publish the files of all tasks. The folder of live ids always exists, because other commands take it as input."""
    staging.commit(written, WRITTEN_ROWS, folder([("class", "live")]))


def staging_of(job: ReconcileJob) -> AbstractContextManager[DatasetStaging | None]:
    """Return the staging directory of the classes, or None if they are not written."""
    return nullcontext() if job.to is None else dataset(job.to, [*job.sources, *job.deltas])


def reconcile(job: ReconcileJob, run: Run[Task, list[IntactRecords]], meter: Meter) -> ReconcileReport:
    """Execute a job. ``run`` executes the tasks that read segments; this process reads the changes, and adds up by id."""
    with IdAggregator(ROWS) as sums, staging_of(job) as staging:

        def records() -> Iterator[tuple[SegmentInput, Sequence[Damage]]]:
            for item, good in map_segments(run, read_intact, pack(job.found.inputs), meter):
                sums.add(rows_of_records(good))
                yield item, good.damage

        changes = 0
        for share in job.shares:
            for batch in read_share(share):
                sums.add(rows_of_changes(batch))
                changes += batch.num_rows
            meter.add(share.size)
        report = report_of(job, records(), changes)
        written = finish(sums, report, staging.path if staging else None, 0)
        if staging:
            commit(staging, written)
    return report


def _first(rows: pa.Table) -> list[tuple[bytes, int]]:
    ids = pa.table({"id": of_any_length(rows["id"]), "count": rows["count"]})
    first = ids.take(pc.select_k_unstable(ids, NAMED, [("id", "ascending")]))
    return list(zip(first["id"].to_pylist(), first["count"].to_pylist(), strict=True))
