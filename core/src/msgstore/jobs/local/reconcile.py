"""Reconciling on one machine: processes read segments and files of changes, this one adds up by id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from msgstore.contract import Damage
from msgstore.jobs.classes import ROWS, WRITTEN_ROWS, add_to, classify, commit, rows_of_changes, rows_of_records, write
from msgstore.jobs.columns.sums import IdAggregator
from msgstore.jobs.deltas import DeltaShare, count_changes, read_share, sum_absolute
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.local.processes import map_segments, task_runner
from msgstore.jobs.output.datasets import DatasetWriter, dataset
from msgstore.jobs.reading.segment_check import read_intact
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport, report_of
from msgstore.jobs.tasks import pack


def reconcile(job: ReconcileJob, processes: int, add: Callable[[int], object]) -> ReconcileReport:
    """``add`` is told of bytes that were read."""
    with IdAggregator(ROWS) as sums, ExitStack() as stack:
        staging = stack.enter_context(dataset(job.to, [*job.sources, *job.deltas])) if job.to else None
        changes = count_changes(_add_changes(job, sums, add))
        report = report_of(job, _add_records(job, processes, sums, add), changes)
        if staging is None:
            for rows in sums.totals():
                add_to(report, classify(rows))
        else:
            with DatasetWriter(staging.path, 0, WRITTEN_ROWS) as writer:
                for rows in sums.totals():
                    classes = classify(rows)
                    add_to(report, classes)
                    write(writer, classes)
                written = writer.finish()
            commit(staging, [written])
    return report


def _add_changes(job: ReconcileJob, sums: IdAggregator, add: Callable[[int], object]) -> Iterator[tuple[DeltaShare, int, int]]:
    for share in job.shares:
        rows = heavy = 0
        for batch in read_share(share):
            sums.add(rows_of_changes(batch))
            rows += batch.num_rows
            heavy += sum_absolute(batch)
        add(share.size)
        yield share, rows, heavy


def _add_records(
    job: ReconcileJob, processes: int, sums: IdAggregator, add: Callable[[int], object]
) -> Iterator[tuple[SegmentInput, tuple[Damage, ...]]]:
    tasks = pack(job.found.inputs)
    with task_runner(processes, len(tasks)) as run:
        for item, good in map_segments(run, read_intact, tasks, add):
            sums.add(rows_of_records(good))
            yield item, good.damage
