"""Job ``convert``: copy messages from a source into a sink, counted, and resumable after a kill."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from msgstore.config import Backend, structure
from msgstore.contract import (
    ConfigError,
    MessageBatch,
    QueueInfo,
    QueueName,
    Sink,
    SinkContext,
    SinkDescriptor,
    Source,
    SourceDamage,
)
from msgstore.contract.messages import MAYBE_DUPLICATE
from msgstore.jobs.messages.conversion import ConversionJournal, working
from msgstore.jobs.messages.rows import name_as_json
from msgstore.jobs.messages.selection import Selection, selected_messages, selected_queues
from msgstore.jobs.messages.sources import SourceSpec, nearest, open_source, source_spec
from msgstore.jobs.tasks import ProgressMeter
from msgstore.jobs.workers import worker_catalogue
from msgstore.plugins.catalogue import Catalogue

FLUSH_BYTES = 64 * 2**20
"""Bytes of bodies between two flushes. After a kill, at most so much is converted again."""
FLUSH_MESSAGES = 2**17
Refused = Callable[[QueueInfo, int, str], None]
"""Called with queue, position and reason of each refused message."""


@attrs.frozen
class ConvertJob:
    """Created and checked by :func:`plan_convert`."""

    source: SourceSpec
    sink: Backend
    destination: str
    selection: Selection
    rename: Mapping[str, str] = attrs.field(factory=dict)
    mark_duplicates: bool = False
    journal: Path | None = None
    """For destinations that are URLs."""
    restart: bool = False

    def about(self) -> dict[str, Any]:
        """Return what must be the same when the conversion continues."""
        return {
            "source": [self.source.source.name, self.source.source.options, str(Path(self.source.path).resolve())],
            "sink": [self.sink.name, self.sink.options],
            "destination": self.destination,
            "selection": attrs.asdict(self.selection),
            "rename": dict(self.rename),
            "raw": self.source.raw,
        }


@attrs.define
class QueueCounts:
    """Messages of one queue: ``selected == written + refused + damaged``."""

    info: QueueInfo
    selected: int = 0
    written: int = 0
    refused: int = 0
    damaged: int = 0
    bytes: int = 0
    """Size of the bodies that were written."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "queue",
            **name_as_json(self.info.name),
            **attrs.asdict(self, filter=lambda field, _: field.name != "info"),
        }


@attrs.define
class ConvertReport:
    """Result of a conversion. An interrupted part of it counts, too."""

    destination: str
    queues: list[QueueCounts] = attrs.field(factory=list)
    damage: list[SourceDamage] = attrs.field(factory=list)
    reasons: Counter[str] = attrs.field(factory=Counter)
    """Reason of refusals to their number."""
    not_read: list[QueueInfo] = attrs.field(factory=list)
    resumed: bool = False
    marked: int = 0
    """Messages that are marked as possible duplicates."""

    def total(self, name: str) -> int:
        return sum(getattr(queue, name) for queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        sums = {name: self.total(name) for name in ("selected", "written", "refused", "damaged", "bytes")}
        return {
            "kind": "summary", "destination": self.destination, "queues": len(self.queues), **sums, "resumed": self.resumed,
            "marked_duplicates": self.marked, "reasons": dict(self.reasons), "damaged_spans": len(self.damage),
        }  # fmt: skip


def choose_sink(catalogue: Catalogue, destination: str, given: Backend | None) -> Backend:
    """Return the sink to use: the given one, or the one of the destination's ending or scheme. Raises ConfigError,
    PluginError."""
    if given is not None and given.name:
        catalogue.sink(given.name)
        return given
    scheme, separator, _ = destination.partition("://")
    for sink in catalogue.descriptors(SinkDescriptor):
        if (separator and scheme in sink.schemes) or any(destination.rstrip("/").endswith(ending) for ending in sink.endings):
            return attrs.evolve(given, name=sink.name) if given is not None else Backend(sink.name)
    endings = {ending: sink.name for sink in catalogue.descriptors(SinkDescriptor) for ending in sink.endings}
    listed = ", ".join(f"*{ending} ({name})" for ending, name in sorted(endings.items()))
    names = ", ".join(catalogue.names("sink"))
    raise ConfigError(f"{destination}: its name says no sink ({listed}). Name one with --sink: {names}")


def plan_convert(
    catalogue: Catalogue,
    path: Path,
    destination: str,
    selection: Selection,
    *,
    source: Backend | None = None,
    sink: Backend | None = None,
    rename: Mapping[str, str] | None = None,
    raw: bool = False,
    now_ms: int | None = None,
    **choices: Any,
) -> ConvertJob:
    """Check names, options and paths. Reads little, writes nothing. Raises ConfigError, PluginError, StoreError."""
    chosen = choose_sink(catalogue, destination, sink)
    descriptor = catalogue.sink(chosen.name)
    structure(descriptor.options, chosen.options, f"the sink {chosen.name}", chosen.base)
    spec = source_spec(catalogue, path, source, raw=raw or descriptor.raw, now_ms=now_ms)
    return ConvertJob(spec, chosen, destination, selection, rename or {}, **choices)


def convert(
    job: ConvertJob, meter: ProgressMeter, on_refused: Refused | None = None, *, dry_run: bool = False
) -> ConvertReport:
    """Execute a job. After a kill or an error, another call continues it. With ``dry_run``, nothing is written.

    Raises StoreError, StoreIOError, ConfigError, PluginError.
    """
    report = ConvertReport(job.destination)
    with open_source(job.source) as source:
        queues = selected_queues(source, job.selection)
        report.not_read = [info for info in queues if not info.read]
        report.damage += source.damage()
        queues = [info for info in queues if info.read]
        _check_names(job, queues)
        with _sink(job, dry_run=dry_run) as (sink, journal):
            _Conversion(job, report, source, sink, journal, meter, on_refused).run(queues)
            if journal is not None and "://" in job.destination:
                journal.end()
    return report


def _check_names(job: ConvertJob, queues: list[QueueInfo]) -> None:
    known = sorted({info.name.queue for info in queues if info.name.queue is not None})
    for old in job.rename:
        if old not in known:
            raise ConfigError(f"--rename {old}: there is no such queue{nearest(old, known)}")


@contextmanager
def _sink(job: ConvertJob, *, dry_run: bool) -> Iterator[tuple[Sink, ConversionJournal | None]]:
    catalogue = worker_catalogue()
    descriptor = catalogue.sink(job.sink.name)
    options = structure(descriptor.options, job.sink.options, f"the sink {job.sink.name}", job.sink.base)
    with ExitStack() as stack:
        journal: ConversionJournal | None = None
        place = job.destination
        if dry_run:
            place = str(Path(stack.enter_context(tempfile.TemporaryDirectory()), "content"))
        elif descriptor.schemes:
            journal = ConversionJournal(job.journal or Path("msgstore-convert.jsonl"), job.about(), job.destination)
            stack.callback(journal.close)
        else:
            journal, path = stack.enter_context(
                working(Path(job.destination), Path(job.source.path), job.about(), restart=job.restart)
            )
            place = str(path)
        token = journal.state["token"] if journal and journal.state else None
        context = SinkContext(destination=place, target=job.destination, options=options, token=token)
        sink: Sink = catalogue.make(descriptor, context)
        try:
            yield sink, journal
        finally:
            sink.close()


@attrs.define
class _Conversion:
    """One run."""

    job: ConvertJob
    report: ConvertReport
    source: Source
    sink: Sink
    journal: ConversionJournal | None
    meter: ProgressMeter
    on_refused: Refused | None
    _held: int = 0
    _messages: int = 0
    """Bodies' bytes and messages since the last flush."""
    _reported: int = 0
    """Damaged spans that the journal has."""
    _repeated: int = 0
    """Messages that were perhaps sent before the interruption."""
    _state: dict[str, Any] = attrs.field(factory=dict)
    """Last state in the journal of the conversion."""

    def run(self, queues: list[QueueInfo]) -> None:
        state = (self.journal and self.journal.state) or {"queue": 0, "position": self.job.selection.first, "counts": []}
        self.report.resumed = "token" in state
        self.report.reasons.update(state.get("reasons", {}))
        self.report.queues = [QueueCounts(info) for info in queues]
        for counts, saved in zip(self.report.queues, state["counts"], strict=False):
            counts.selected, counts.written, counts.refused, counts.damaged, counts.bytes = saved
        self._repeated, self._state = state.get("sending", 0) if self.job.mark_duplicates else 0, dict(state)
        if self.journal is not None:
            found = [
                SourceDamage(**span | {"name": span["name"] and QueueName(**span["name"])}) for span in self.journal.damage
            ]
            self.report.damage = found or self.report.damage
            self._reported = len(found)
        for number in range(state["queue"], len(queues)):
            first = state["position"] if number == state["queue"] else self.job.selection.first
            self._convert_queue(number, first)
        if self.journal is not None:
            self._flush(len(queues), 0)
            self.sink.finish()

    def _convert_queue(self, number: int, first: int) -> None:
        counts = self.report.queues[number]
        taken = self.report.total("selected")
        selection = attrs.evolve(self.job.selection, first=first)
        for item in selected_messages(self.source, counts.info.name, selection, taken):
            if isinstance(item, SourceDamage):
                self.report.damage.append(item)
                counts.selected += item.messages
                counts.damaged += item.messages
                continue
            self._write(counts, item)
            self.meter.add(sum(item.sizes))
            if self._held >= FLUSH_BYTES or self._messages >= FLUSH_MESSAGES:
                self._flush(number, item.positions[-1] + 1)

    def _write(self, counts: QueueCounts, batch: MessageBatch) -> None:
        counts.selected += len(batch)
        if (new := self.job.rename.get(batch.name.queue or "")) is not None:
            batch = attrs.evolve(batch, name=attrs.evolve(batch.name, queue=new))
        batch = self._without(counts, batch, self.sink.refused(batch))
        if not len(batch):
            return
        if self._repeated:
            marks = min(self._repeated, len(batch))
            kept = batch.certainties or ["certain"] * len(batch)
            batch = attrs.evolve(batch, certainties=[MAYBE_DUPLICATE] * marks + list(kept[marks:]))
            self._repeated -= marks
            self.report.marked += marks
        if self.journal is not None:
            if "://" in self.job.destination:
                self.journal.append(self._state | {"sending": self._messages + len(batch), "damage": []})
            batch = self._without(counts, batch, self.sink.write(batch))
        counts.written += len(batch)
        size = sum(map(len, batch.bodies))
        counts.bytes += size
        self._held += size
        self._messages += len(batch)

    def _without(self, counts: QueueCounts, batch: MessageBatch, refused: Any) -> MessageBatch:
        """Return the messages that were not refused, and count the others."""
        reasons = dict(refused)
        for row, reason in reasons.items():
            counts.refused += 1
            self.report.reasons[reason] += 1
            if self.on_refused is not None:
                self.on_refused(counts.info, batch.positions[row], reason)
        return batch.take([row for row in range(len(batch)) if row not in reasons]) if reasons else batch

    def _flush(self, queue: int, position: int) -> None:
        if self.journal is None:
            return
        token = self.sink.flush()
        self._held = self._messages = 0
        counts = [[one.selected, one.written, one.refused, one.damaged, one.bytes] for one in self.report.queues]
        damage = [attrs.asdict(span) for span in self.report.damage[self._reported :]]
        self._state = {
            "queue": queue, "position": position, "counts": counts, "reasons": dict(self.report.reasons), "token": token,
            "damage": damage, "time": round(time.time(), 3),
        }  # fmt: skip
        self.journal.append(self._state)
        self._reported = len(self.report.damage)
