"""Job ``convert``: copy messages from a source into a sink, counted, and resumable after a kill."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import MessageBatch, QueueInfo, QueueName, Sink, SinkContext, Source, SourceDamage
from msgstore.contract.messages import MAYBE_DUPLICATE
from msgstore.jobs.messages.checked import CheckedSink
from msgstore.jobs.messages.conversion import ConversionJournal, check_kinds, working
from msgstore.jobs.messages.conversion_plan import ConvertJob, check_renames, renamed
from msgstore.jobs.messages.conversion_report import ConvertReport, QueueCounts
from msgstore.jobs.messages.selection import selected_messages, selected_queues
from msgstore.jobs.messages.sources import open_source
from msgstore.jobs.tasks import ProgressMeter
from msgstore.jobs.workers import worker_catalogue

FLUSH_BYTES = 24 * 2**20
"""Bytes of messages between two flushes. After a kill, at most so much is converted again."""
FLUSH_MESSAGES = 2**17
ROW_BYTES = 2**9
"""Bytes that a sink may hold of each message besides: its hash, place, names and times."""
Refused = Callable[[QueueInfo, int, str], None]
"""Called with queue, position and reason of each refused message."""


def convert(job: ConvertJob, meter: ProgressMeter, on_refused: Refused | None = None) -> ConvertReport:
    """Execute a job. After a kill or an error, another call continues it.

    Raises StoreError, StoreIOError, ConfigError, PluginError.
    """
    report = ConvertReport(job.target)
    with open_source(job.source) as source:
        queues = find_queues(source, job, report)
        with _sink(job) as (sink, journal):
            Conversion(job, report, source, sink, journal, meter, on_refused).run(queues)
            if journal is not None and job.journal is not None:
                journal.end()
    return report


def find_queues(source: Source, job: ConvertJob, report: ConvertReport) -> list[QueueInfo]:
    """Return the queues that are converted, and enter them in the report, with what is not read and what is damaged."""
    found = selected_queues(source, job.selection)
    report.not_read = [info for info in found if not info.read]
    report.damage += source.damage()
    report.lost = sum(span.messages for span in report.damage)
    queues = [info for info in found if info.read]
    check_renames(job, queues)
    report.queues = [QueueCounts(info) for info in queues]
    return queues


@contextmanager
def _sink(job: ConvertJob) -> Iterator[tuple[Sink, ConversionJournal | None]]:
    with ExitStack() as stack:
        journal: ConversionJournal | None = None
        place = job.destination
        if job.journal is None and job.dry_run:
            place = str(Path(stack.enter_context(tempfile.TemporaryDirectory()), "content"))
        elif job.journal is None:
            journal, path = stack.enter_context(
                working(Path(job.destination), Path(job.source.path), job.about(), restart=job.restart)
            )
            place = str(path)
        elif not job.dry_run:
            journal = stack.enter_context(ConversionJournal(job.journal, job.about(), job.target, restart=job.restart))
        token = journal.state["token"] if journal and journal.state else None
        sink = stack.enter_context(open_sink(job, place, token))
        if job.journal is None:
            check_kinds(Path(place), Path(job.destination))
        yield sink, journal


def open_sink(job: ConvertJob, place: str, token: Mapping[str, Any] | None = None) -> AbstractContextManager[Sink]:
    """Open the sink of a job at another path, in any process."""
    catalogue = worker_catalogue()
    descriptor = catalogue.sink(job.sink.name)
    options = job.sink.structure(descriptor.options, f"the sink {job.sink.name}", "--sink-option")
    context = SinkContext(destination=place, target=job.target, options=options, token=token)
    return closing(CheckedSink(catalogue.make(descriptor, context), catalogue, descriptor, job.target))


@attrs.define
class Conversion:
    """One run, or the conversion of a part."""

    job: ConvertJob
    report: ConvertReport
    source: Source
    sink: Sink
    journal: ConversionJournal | None = None
    """None in a dry run, and in one that cannot be continued."""
    meter: ProgressMeter = attrs.field(factory=lambda: ProgressMeter(0))
    on_refused: Refused | None = None
    _selected: int = 0
    """Messages of all queues, without the lost ones."""
    _held: int = 0
    _messages: int = 0
    """Bytes and messages since the last flush."""
    _known: frozenset[SourceDamage] = frozenset()
    """Damage that was reported before an interruption, and is met again."""
    _reported: int = 0
    """Damaged spans that the journal has."""
    _changed: set[int] = attrs.field(factory=set)
    _reasons: set[str] = attrs.field(factory=set)
    """Numbers of queues, and reasons, whose counts have changed since the last flush."""
    _repeated: int = 0
    """Messages that were perhaps sent before the interruption."""

    def run(self, queues: list[QueueInfo]) -> None:
        number, position = 0, self.job.selection.first
        if self.journal is not None:
            if (state := self.journal.state) is not None:
                number, position = state["queue"], state["position"]
                self._continue(state)
            self._repeated = self.journal.sent if self.job.mark_duplicates else 0
        for following in range(number, len(queues)):
            first = position if following == number else self.job.selection.first
            self.convert_queue(self.report.queues[following], first, number=following)
        if self.journal is not None:
            self._flush(len(queues), 0)
            self.sink.finish()

    def _continue(self, state: Mapping[str, Any]) -> None:
        """Take over the numbers of an interrupted conversion."""
        assert self.journal is not None
        self.report.marked = state["marked"]
        self.report.reasons.update(state["reasons"])
        self.report.others.update(state["others"])
        for number, saved in state["counts"].items():
            counts = self.report.queues[number]
            counts.selected, counts.written, counts.refused, counts.damaged, counts.bytes = saved
            self._selected += counts.selected - counts.damaged
        self.report.kept = self._selected
        self.report.damage = [
            SourceDamage(**span | {"name": span["name"] and QueueName(**span["name"])}) for span in self.journal.damage
        ]
        self._known, self._reported = frozenset(self.report.damage), len(self.report.damage)

    def convert_queue(self, counts: QueueCounts, first: int, stop: int | None = None, *, number: int = 0) -> None:
        """Convert the positions of a queue from ``first`` up to ``stop``. ``number``: of the queue, for the journal."""
        selection = attrs.evolve(self.job.selection, first=first)
        for item in selected_messages(self.source, counts.info.name, selection, self._selected, stop, self.report.others):
            self._changed.add(number)
            if not isinstance(item, SourceDamage):
                self._selected += len(item)
                self._write(counts, item)
                self.meter.add(sum(item.sizes))
                is_service = self.job.journal is not None  # what is sent there cannot be taken back
                if is_service or self._held >= FLUSH_BYTES or self._messages >= FLUSH_MESSAGES:
                    self._flush(number, item.positions[-1] + 1)
            elif item not in self._known:
                self.report.damage.append(item)
                counts.selected += item.messages
                counts.damaged += item.messages

    def _write(self, counts: QueueCounts, batch: MessageBatch) -> None:
        counts.selected += len(batch)
        if self.job.rename:
            batch = attrs.evolve(batch, name=renamed(self.job, batch.name))
        batch = self._without(counts, batch, [(row, reason) for row, reason in enumerate(batch.refusals or ()) if reason])
        batch = self._without(counts, batch, self.sink.refused(batch))
        if not len(batch):
            return
        self._messages += len(batch)
        self._held += weight(batch)
        if self._repeated:
            marks = min(self._repeated, len(batch))
            kept = batch.certainties or ["certain"] * len(batch)
            batch = attrs.evolve(batch, certainties=[MAYBE_DUPLICATE] * marks + list(kept[marks:]))
            self._repeated -= marks
            self.report.marked += marks
        if self.journal is not None and self.job.journal is not None:
            self.journal.note_sending(self._messages)
        if not self.job.dry_run:
            batch = self._without(counts, batch, self.sink.write(batch))
        counts.written += len(batch)
        counts.bytes += sum(map(len, batch.bodies))

    def _without(self, counts: QueueCounts, batch: MessageBatch, refused: Any) -> MessageBatch:
        """Return the messages that were not refused, and count the others."""
        reasons = dict(refused)
        for row, reason in reasons.items():
            counts.refused += 1
            self.report.reasons[reason] += 1
            self._reasons.add(reason)
            if self.on_refused is not None:
                self.on_refused(counts.info, batch.positions[row], reason)
        return batch.take([row for row in range(len(batch)) if row not in reasons]) if reasons else batch

    def _flush(self, queue: int, position: int) -> None:
        if self.journal is None:
            return
        token = self.sink.flush()
        self._held = self._messages = 0
        changed = ((number, self.report.queues[number]) for number in sorted(self._changed))
        counts = {number: [one.selected, one.written, one.refused, one.damaged, one.bytes] for number, one in changed}
        reasons = {reason: self.report.reasons[reason] for reason in sorted(self._reasons)}
        damage = [attrs.asdict(span) for span in self.report.damage[self._reported :]]
        self.journal.confirm({
            "queue": queue, "position": position, "counts": counts, "reasons": reasons, "token": token,
            "marked": self.report.marked, "others": dict(self.report.others), "damage": damage, "time": round(time.time(), 3),
        })  # fmt: skip
        self._reported = len(self.report.damage)
        self._changed.clear()
        self._reasons.clear()


def weight(batch: MessageBatch) -> int:
    """Return the bytes of a batch that a sink may hold in memory."""
    columns = [batch.bodies, batch.raws or (), batch.raw_properties or ()]
    found = sum(len(value) for column in columns for value in column if value is not None)
    texts = [column for column in (batch.properties, batch.headers) if column is not None and batch.raw_properties is None]
    return found + ROW_BYTES * len(batch) + sum(len(repr(value)) for column in texts for value in column if value)
