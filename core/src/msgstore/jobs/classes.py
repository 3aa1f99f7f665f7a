"""Execution of :mod:`msgstore.jobs.reconcile`: records and changes of counts as columns, and the class of each id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pyarrow.compute as pc

from msgstore.contract import Damage
from msgstore.jobs.columns.sums import IdAggregator, fixed_width, int64, of_any_length
from msgstore.jobs.counts import check_weights, read_split, weight_of
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.datasets import DatasetPart, DatasetStaging, DatasetWriter, dataset
from msgstore.jobs.reading.segment_check import IntactRecords, read_intact
from msgstore.jobs.reading.splits import FileSplit
from msgstore.jobs.reconcile import NAMED, WRITTEN, ClassReport, ReconcileJob, ReconcileReport, report_of
from msgstore.jobs.tasks import ProgressMeter, Run, Task, group_into_tasks, map_segments

ROWS = pa.schema([("id", pa.binary(16)), ("count", pa.int64()), ("records", pa.int64()), ("size", pa.int64())])
"""A record or a change. Grouping both by id is their full outer join, at half the cost."""
WRITTEN_ROWS = pa.schema([("id", pa.binary()), ("count", pa.int64()), ("records", pa.int64())])


def rows_of(ids: pa.Array, *, count: pa.Array | None = None, sizes: pa.Array | None = None) -> pa.RecordBatch:
    """Return the rows of changes of ``count``, or of records of ``sizes``."""
    zeros, ones = (pa.repeat(pa.scalar(value, pa.int64()), len(ids)) for value in (0, 1))
    return pa.record_batch([ids, count or zeros, ones if sizes else zeros, sizes or zeros], schema=ROWS)


def rows_of_records(good: IntactRecords) -> pa.RecordBatch:
    return rows_of(fixed_width(good.records.ids), sizes=int64(good.records.sizes))


def finish(sums: IdAggregator, report: ReconcileReport, staging: str | None, task: int) -> list[DatasetPart]:
    """Add every id of ``sums`` to its class, and write it into the folder of the class, if there is a ``staging`` directory.

    Raises StoreIOError.
    """
    writer = None
    for rows in sums.totals():
        for name, found in _classify(rows).items():
            references, records, size = (pc.sum(found[column]).as_py() or 0 for column in ("count", "records", "size"))
            report.classes[name].add(ClassReport(found.num_rows, references, records, size))
            if name not in WRITTEN or not found.num_rows:
                continue
            ids = of_any_length(found["id"])
            if name in report.named:
                first = pa.table({"id": ids, "count": found["count"]})
                first = first.take(pc.select_k_unstable(first, NAMED, [("id", "ascending")]))
                report.name(name, zip(first["id"].to_pylist(), first["count"].to_pylist(), strict=True))
            if staging is not None:
                writer = writer or DatasetWriter(staging, task, WRITTEN_ROWS)
                columns = [ids, found["count"], found["records"]]
                writer.write(f"class={name}", pa.table(columns, schema=WRITTEN_ROWS))
    return [writer.finish()] if writer else []


def _classify(rows: pa.Table) -> dict[str, pa.Table]:
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
    return {name: rows.filter(mask) for name, mask in masks.items()}


def commit(staging: DatasetStaging, written: Sequence[DatasetPart]) -> None:
    """Publish the files of all tasks. The folder of live ids always exists, because other commands take it as input."""
    staging.commit(written, WRITTEN_ROWS, "class=live")


def staging_of(job: ReconcileJob) -> AbstractContextManager[DatasetStaging | None]:
    """Return the staging directory of the classes, or None if they are not written."""
    return nullcontext() if job.to is None else dataset(job.to, [*job.sources, *job.deltas])


def reconcile(job: ReconcileJob, run: Run[Task, list[IntactRecords]], meter: ProgressMeter) -> ReconcileReport:
    """Execute a job. ``run`` executes the tasks that read segments; this process reads the changes, and adds up by id."""
    with IdAggregator(ROWS) as sums, staging_of(job) as staging:

        def records() -> Iterator[tuple[SegmentInput, Sequence[Damage]]]:
            for item, good in map_segments(run, read_intact, group_into_tasks(job.found.inputs), meter):
                sums.add(rows_of_records(good))
                yield item, good.damage

        changes = 0
        weights: list[tuple[FileSplit, float]] = []
        for split in job.splits:
            for batch in read_split(split):
                sums.add(rows_of(batch["id"], count=batch["count"]))
                changes += batch.num_rows
                weights.append((split, weight_of(batch)))
            meter.add(split.size)
        check_weights(weights)
        report = report_of(job, records(), changes)
        written = finish(sums, report, staging.path if staging else None, 0)
        if staging:
            commit(staging, written)
    return report
