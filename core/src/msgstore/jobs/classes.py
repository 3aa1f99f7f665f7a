"""Execution of :mod:`msgstore.jobs.reconcile`: records and changes of counts as columns, and the class of each id.

The ids of the classes become a directory of Parquet files, which is published by one rename. Each attempt of a task writes into
its own directory below the staging directory. The driver moves the files of one attempt per task, and deletes all others.
Folders are named ``class=NAME``, as Spark and Hive name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from msgstore.contract import Damage
from msgstore.files import Files
from msgstore.jobs.columns.sums import IdAggregator, fixed_width, int64, of_any_length
from msgstore.jobs.counts import check_weights, read_split, weight_of
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.staging_directory import StagingDirectory, create_attempt, errors
from msgstore.jobs.paths import absolute
from msgstore.jobs.reading.segment_check import IntactRecords, read_intact
from msgstore.jobs.reading.splits import FileSplit
from msgstore.jobs.reconcile import NAMED, WRITTEN, ClassReport, ReconcileJob, ReconcileReport, report_of
from msgstore.jobs.tasks import ProgressMeter, Run, Task, group_into_tasks, map_segments

ROWS = pa.schema([("id", pa.binary(16)), ("count", pa.int64()), ("records", pa.int64()), ("size", pa.int64())])
"""A record or a change. Grouping both by id is their full outer join, at half the cost."""
WRITTEN_ROWS = pa.schema([("id", pa.binary()), ("count", pa.int64()), ("records", pa.int64())])
FILE_SIZE = 2**26
"""Bytes of rows that a task keeps in memory, and then writes as one file of each class."""


def rows_of(ids: pa.Array, *, count: pa.Array | None = None, sizes: pa.Array | None = None) -> pa.RecordBatch:
    """Return the rows of changes of ``count``, or of records of ``sizes``."""
    zeros, ones = (pa.repeat(pa.scalar(value, pa.int64()), len(ids)) for value in (0, 1))
    return pa.record_batch([ids, count or zeros, ones if sizes else zeros, sizes or zeros], schema=ROWS)


def rows_of_records(good: IntactRecords) -> pa.RecordBatch:
    return rows_of(fixed_width(good.records.ids), sizes=int64(good.records.sizes))


@attrs.frozen
class ClassFiles:
    """Files of one attempt of a task. Picklable, small."""

    directory: str
    files: tuple[tuple[str, int], ...]
    """(name relative to the directory, bytes)."""


class ClassWriter:
    """Writer of one attempt of a task. What is not finished is deleted when the job ends. Raises StoreIOError."""

    def __init__(self, staging: str, task: int) -> None:
        self._task = task
        self._waiting: dict[str, list[pa.Table]] = {}
        """Rows by class that are not written yet."""
        self._held = 0
        self._written: list[tuple[str, int]] = []
        with errors(Path(staging)):
            self._directory = create_attempt(staging, task)

    def write(self, name: str, rows: pa.Table) -> None:
        """Add rows to a class."""
        self._waiting.setdefault(name, []).append(rows)
        self._held += rows.nbytes
        if self._held >= FILE_SIZE:
            self._write_files()

    def finish(self) -> ClassFiles:
        """Write everything, and return the files."""
        self._write_files()
        return ClassFiles(str(self._directory), tuple(self._written))

    def _write_files(self) -> None:
        waiting, self._waiting, self._held = self._waiting, {}, 0
        with errors(self._directory):
            for name, tables in waiting.items():
                path = self._directory / f"class={name}"
                with suppress(FileExistsError):  # without parents: if the driver has deleted the attempt, nothing may come back
                    Files().create_directory(path)
                path /= f"part-{self._task:05}-{len(self._written)}.parquet"
                content = pa.BufferOutputStream()  # in memory: if the disk is full, pyarrow does not try again
                pq.write_table(pa.concat_tables(tables), content, compression="zstd")
                data = content.getvalue()
                Files().write_file(path, [data], sync=False)
                self._written.append((path.relative_to(self._directory).as_posix(), data.size))


def finish(sums: IdAggregator, report: ReconcileReport, staging: str | None, task: int) -> list[ClassFiles]:
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
                writer = writer or ClassWriter(staging, task)
                columns = [ids, found["count"], found["records"]]
                writer.write(name, pa.table(columns, schema=WRITTEN_ROWS))
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


def staging_of(job: ReconcileJob) -> AbstractContextManager[StagingDirectory | None]:
    """Return the staging directory of the classes, or None if they are not written."""
    if job.to is None:
        return nullcontext()
    return StagingDirectory.create_locked(absolute(job.to), [*job.sources, *job.deltas])


def commit(job: ReconcileJob, staging: StagingDirectory, written: Sequence[ClassFiles]) -> None:
    """Publish the files of all tasks. Raises StoreError if one is missing, or if a writer has opened a store; StoreIOError.

    The folder of live ids always has a file, if need be without rows, because other commands take it as input.
    """
    with staging.publishing(job.found.check_no_writer_since) as content:
        if not any(name.startswith("class=live") for attempt in written for name, _ in attempt.files):
            writer = ClassWriter(staging.path, len(written))
            writer.write("live", WRITTEN_ROWS.empty_table())
            written = [*written, writer.finish()]
        for attempt in written:
            for name, size in attempt.files:
                Files().make_directory((content / name).parent)
                staging.take(Path(attempt.directory, name), size, content / name)


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
            commit(job, staging, written)
    return report
