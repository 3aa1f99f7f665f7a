"""Job runner ``local``: processes of one machine. Ids and locations of all records are in the memory of this process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Set
from functools import partial
from itertools import compress, islice

from msgstore.builtin.options import LocalOptions
from msgstore.jobs.counts import sums_of
from msgstore.jobs.diff import DiffJob, DiffReport, diff
from msgstore.jobs.export import ExportJob, ExportReport, export
from msgstore.jobs.importing import ImportJob, ImportReport, import_messages
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.inventory import InventoryJob, InventoryReport, scan_for_inventory, with_live
from msgstore.jobs.inventory import report_of as inventory_of
from msgstore.jobs.local.processes import processors, task_runner
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part
from msgstore.jobs.reading.segment_check import IntactRecords
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.salvage import (
    NAMED,
    InputReport,
    SalvageJob,
    SalvageReport,
    Selection,
    check_complete,
    copy,
    examine,
    report_of,
)
from msgstore.jobs.tasks import Meter, Progress, map_segments, pack

_TAKEN, _COPY, _DEAD = 0, 1, 2
"""Verdicts on an intact record: it is copied; another copy of its id is copied; it has no reference."""


class LocalRunner:
    """Implementation of :class:`msgstore.jobs.runner.JobRunner`."""

    def __init__(self, options: LocalOptions) -> None:
        self._processes = options.processes or processors()

    def salvage(self, job: SalvageJob, progress: Progress | None = None) -> SalvageReport:
        tasks, light, meter = job.tasks(), job.for_workers(), Meter(2 * job.size, progress)
        counts = None
        if job.counts is not None:
            counts = {msg_id: count for msg_id, count in sums_of(job.counts).items() if count > 0}
        taken: set[bytes] = set()
        picks, rows = [], []
        with task_runner(self._processes, len(tasks)) as run:
            for item, found in map_segments(run, partial(examine, job=light), tasks, meter):
                verdicts = _verdicts(found.records.id_list(), taken, None if counts is None else counts.keys())
                picks.append(Selection(item, found.crc32, *_picked(found, verdicts)))
                rows.append((item, _report(item, found, verdicts), found.damage))
            missing = sorted(counts.keys() - taken) if counts else []
            report = report_of(job, rows, len(missing))
            check_complete(job, report, missing[:NAMED])
            with Staging.begin(job.target, sources=job.sources) as staging:
                rest = iter(picks)
                by_task = ((number, list(islice(rest, len(task)))) for number, task in enumerate(tasks))
                parts = _metered(run(partial(_copy, job=light, staging=staging.path), by_task), tasks, meter)
                staging.commit(parts, None if counts is None else ((i, count) for i, count in counts.items() if i in taken))
        return report

    def reconcile(self, job: ReconcileJob, progress: Progress | None = None) -> ReconcileReport:
        from msgstore.jobs.classes import reconcile  # pyarrow

        tasks = pack(job.found.inputs)
        with task_runner(self._processes, len(tasks)) as run:
            return reconcile(job, run, Meter(job.size, progress))

    def inventory(self, job: InventoryJob, progress: Progress | None = None) -> InventoryReport:
        counts = None if job.counts is None else sums_of(job.counts)
        tasks, meter = pack(job.found.inputs), Meter(job.size, progress)
        with task_runner(self._processes, len(tasks)) as run:
            scanned = map_segments(run, partial(scan_for_inventory, with_ids=counts is not None), tasks, meter)
            return inventory_of(job, with_live(scanned, counts))

    def diff(self, job: DiffJob, progress: Progress | None = None) -> DiffReport:
        with task_runner(self._processes, max(len(pack(found.inputs)) for found in (job.found_a, job.found_b))) as run:
            return diff(job, run, Meter(job.size, progress))

    def import_messages(self, job: ImportJob, progress: Progress | None = None) -> ImportReport:
        with task_runner(self._processes, len(job.shares)) as run:
            return import_messages(job, run, Meter(job.size, progress))

    def export(self, job: ExportJob, progress: Progress | None = None) -> ExportReport:
        with task_runner(self._processes, len(job.tasks())) as run:
            return export(job, run, Meter(job.size, progress))


def _copy(numbered: tuple[int, list[Selection]], job: SalvageJob, staging: str) -> Part:
    return copy(*numbered, job, staging)


def _verdicts(ids: list[bytes], taken: set[bytes], alive: Set[bytes] | None) -> bytes:
    """Return the verdict on each record, and add the ids of those that are copied to ``taken``.

    ``alive``: ids with a reference; None if unknown.
    """
    new = set(ids)
    if len(new) == len(ids) and taken.isdisjoint(new) and (alive is None or alive >= new):  # the usual case
        taken |= new
        return bytes(len(ids))
    verdicts = bytearray()
    for msg_id in ids:
        if alive is not None and msg_id not in alive:
            verdicts.append(_DEAD)
        elif msg_id in taken:
            verdicts.append(_COPY)
        else:
            taken.add(msg_id)
            verdicts.append(_TAKEN)
    return bytes(verdicts)


def _picked(found: IntactRecords, verdicts: bytes) -> tuple[bytes, array[int], array[int]]:
    """Return ids, offsets and sizes of the records that are copied."""
    columns = found.records
    if not any(verdicts):
        return bytes(columns.ids), columns.offsets, columns.sizes
    picked = [verdict == _TAKEN for verdict in verdicts]
    offsets, sizes = (array("Q", compress(column, picked)) for column in (columns.offsets, columns.sizes))
    return b"".join(compress(columns.id_list(), picked)), offsets, sizes


def _report(item: SegmentInput, found: IntactRecords, verdicts: bytes) -> InputReport:
    sizes = [sum(found.records.sizes), 0, 0]
    for at in compress(range(len(verdicts)), verdicts):
        sizes[_TAKEN] -= found.records.sizes[at]
        sizes[verdicts[at]] += found.records.sizes[at]
    report = InputReport.of(
        item, found, good=sizes[_TAKEN], records=verdicts.count(_TAKEN), duplicates=sizes[_COPY], dead=sizes[_DEAD]
    )
    if any(found.recovered):
        for row, verdict, is_recovered in zip(found.records.rows(), verdicts, found.recovered, strict=True):
            if verdict == _TAKEN and is_recovered:
                report.recovered.add(*row)
    return report


def _metered(parts: Iterable[Part], tasks: Iterable[tuple[SegmentInput, ...]], meter: Meter) -> Iterator[Part]:
    """Yield the parts. They are written while ``commit`` takes them, so that it adds the state of the job to an error."""
    for part, task in zip(parts, tasks, strict=True):
        meter.add(sum(item.size for item in task))
        yield part
