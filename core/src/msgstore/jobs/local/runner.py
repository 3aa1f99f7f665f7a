"""The engine ``local``: the processors of one machine. Ids and places of all records are in this process's memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import compress, groupby

import attrs

from msgstore.builtin.options import LocalOptions
from msgstore.contract import Damage
from msgstore.jobs.counts import sums_of
from msgstore.jobs.diff import DiffJob, DiffReport
from msgstore.jobs.export import ExportJob, ExportReport, export
from msgstore.jobs.importing import ImportJob, ImportReport, import_messages
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.inventory import InventoryJob, ScannedSegment, live_of, scan_for_inventory
from msgstore.jobs.inventory import report_of as inventory_of
from msgstore.jobs.inventory_report import InventoryReport
from msgstore.jobs.local.diff import diff
from msgstore.jobs.local.processes import map_segments, processors, task_runner
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.reports import InputReport, SalvageReport
from msgstore.jobs.salvage import (
    COPY,
    DEAD,
    NAMED,
    TAKEN,
    ExaminedSegment,
    SalvageJob,
    Selection,
    check_complete,
    copy,
    examine,
    report_input,
    report_of,
)
from msgstore.jobs.tasks import Progress, pack


class LocalRunner:
    """A :class:`msgstore.jobs.runner.JobRunner`."""

    def __init__(self, options: LocalOptions) -> None:
        self._processes = options.processes or processors()

    def salvage(self, job: SalvageJob, progress: Progress | None = None) -> SalvageReport:
        tasks = job.tasks()
        counts = None
        if job.counts is not None:
            counts = {msg_id: count for msg_id, count in sums_of(job.counts).items() if count > 0}
        meter = _Meter(progress, 2 * job.size)
        with task_runner(self._processes, len(tasks)) as run:
            selector = _CopySelector(None if counts is None else counts.keys())
            for item, found in map_segments(run, partial(examine, job=job.for_workers()), tasks, meter.add):
                selector.add(item, found)
            missing = sorted(counts.keys() - selector.taken) if counts else []
            report = report_of(job, selector.rows, len(missing))
            check_complete(job, report, missing[:NAMED])
            with Staging.begin(job.target, sources=job.sources) as staging:
                write = partial(_copy_all, job=job.for_workers(), staging=staging.path)
                parts = run(write, enumerate(_by_task(tasks, selector.picks)))
                staging.commit(_metered(parts, tasks, meter), _of_taken(counts, selector.taken))
        return report

    def reconcile(self, job: ReconcileJob, progress: Progress | None = None) -> ReconcileReport:
        from msgstore.jobs.local.reconcile import reconcile  # pyarrow

        meter = _Meter(progress, job.size)
        return reconcile(job, self._processes, meter.add)

    def inventory(self, job: InventoryJob, progress: Progress | None = None) -> InventoryReport:
        counts = None if job.counts is None else sums_of(job.counts)
        tasks, meter = pack(job.found.inputs), _Meter(progress, job.size)
        with task_runner(self._processes, len(tasks)) as run:
            scanned = map_segments(run, partial(scan_for_inventory, with_ids=counts is not None), tasks, meter.add)
            return inventory_of(job, _with_live(scanned, counts))

    def diff(self, job: DiffJob, progress: Progress | None = None) -> DiffReport:
        return diff(job, self._processes, _Meter(progress, job.size).add)

    def import_messages(self, job: ImportJob, progress: Progress | None = None) -> ImportReport:
        with task_runner(self._processes, len(job.shares)) as run:
            return import_messages(job, run, progress)

    def export(self, job: ExportJob, progress: Progress | None = None) -> ExportReport:
        with task_runner(self._processes, len(job.tasks())) as run:
            return export(job, run, _Meter(progress, job.size).add)


def _with_live(
    scanned: Iterable[tuple[SegmentInput, ScannedSegment | None]], counts: Mapping[bytes, int] | None
) -> Iterator[tuple[SegmentInput, ScannedSegment | None, tuple[int, int] | None]]:
    for _, group in groupby(scanned, key=lambda row: row[0].store):
        seen: set[bytes] = set()
        for item, stock in group:
            yield item, stock, None if stock is None or counts is None else live_of(stock, counts, seen)


def _copy_all(numbered: tuple[int, list[Selection]], job: SalvageJob, staging: str) -> Part:
    return copy(*numbered, job, staging)


class _CopySelector:
    """Selects the first intact copy of each id, in the order of the segments."""

    def __init__(self, alive: Set[bytes] | None) -> None:
        """``alive``: the ids that have a reference; None if nobody knows."""
        self.taken: set[bytes] = set()
        self.picks: list[Selection] = []
        self.rows: list[tuple[SegmentInput, InputReport, tuple[Damage, ...]]] = []
        self._alive = alive

    def add(self, item: SegmentInput, found: ExaminedSegment) -> None:
        columns = found.records
        ids = columns.id_list()
        if self._all_first(ids):
            self._add_report(item, found, [True] * len(columns), good=sum(columns.sizes), records=len(columns))
            self.picks.append(Selection(item, found.crc32, bytes(columns.ids), columns.offsets, columns.sizes))
            return
        verdicts = self._verdicts(ids)
        picked = [verdict == TAKEN for verdict in verdicts]
        sums = dict.fromkeys((TAKEN, COPY, DEAD), 0)
        for verdict, size in zip(verdicts, columns.sizes, strict=True):
            sums[verdict] += size
        counted = {"good": sums[TAKEN], "records": sum(picked), "duplicates": sums[COPY], "dead": sums[DEAD]}
        self._add_report(item, found, picked, **counted)
        sizes = array("Q", compress(columns.sizes, picked))
        self.picks.append(
            Selection(item, found.crc32, b"".join(compress(ids, picked)), array("Q", compress(columns.offsets, picked)), sizes)
        )

    def _add_report(self, item: SegmentInput, found: ExaminedSegment, picked: list[bool], **counted: int) -> None:
        report = report_input(item, found, **counted)
        if any(found.recovered):
            for row, is_picked, is_recovered in zip(found.records.rows(), picked, found.recovered, strict=True):
                if is_picked and is_recovered:
                    report.recovered.add(*row)
        self.rows.append((item, report, found.damage))

    def _all_first(self, ids: list[bytes]) -> bool:
        """True, and they are taken, if none was seen before and each has a reference: so it mostly is, and sets are fast."""
        new = set(ids)
        if len(new) < len(ids) or not self.taken.isdisjoint(new) or not (self._alive is None or self._alive >= new):
            return False
        self.taken |= new
        return True

    def _verdicts(self, ids: list[bytes]) -> bytearray:
        taken, alive = self.taken, self._alive
        verdicts = bytearray()
        for msg_id in ids:
            if alive is not None and msg_id not in alive:
                verdicts.append(DEAD)
            elif msg_id in taken:
                verdicts.append(COPY)
            else:
                taken.add(msg_id)
                verdicts.append(TAKEN)
        return verdicts


def _by_task(tasks: Iterable[tuple[SegmentInput, ...]], picks: Iterable[Selection]) -> Iterator[list[Selection]]:
    rest = iter(picks)
    for task in tasks:
        yield [next(rest) for _ in task]


def _of_taken(counts: Mapping[bytes, int] | None, taken: set[bytes]) -> Iterator[tuple[bytes, int]] | None:
    return None if counts is None else ((msg_id, count) for msg_id, count in counts.items() if msg_id in taken)


def _metered(parts: Iterable[Part], tasks: Iterable[tuple[SegmentInput, ...]], meter: _Meter) -> Iterator[Part]:
    for part, task in zip(parts, tasks, strict=True):
        meter.add(sum(item.size for item in task))
        yield part


@attrs.define
class _Meter:
    progress: Progress | None
    total: int
    done: int = 0

    def add(self, size: int) -> None:
        self.done += size
        if self.progress:
            self.progress(self.done, self.total)
