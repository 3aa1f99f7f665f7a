"""Conversion in parts that other processes write: each reads some positions of a queue, and a sink joins the results.

Nothing is kept if it fails: only :mod:`msgstore.jobs.messages.convert` can be continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import attrs

from msgstore.contract import (
    Capability,
    ConfigError,
    JoiningSink,
    QueueInfo,
    QueueName,
    RandomAccessSource,
    Source,
    StoreError,
)
from msgstore.files import Files
from msgstore.jobs.messages.conversion import WORK, check_kinds, delete_work
from msgstore.jobs.messages.conversion_plan import ConvertJob
from msgstore.jobs.messages.conversion_report import ConvertReport, QueueCounts
from msgstore.jobs.messages.convert import Conversion, Refused, find_queues, open_sink
from msgstore.jobs.messages.sources import SourceSpec, open_source
from msgstore.jobs.output.staging_directory import StagingDirectory, create_attempt, errors
from msgstore.jobs.paths import absolute
from msgstore.jobs.tasks import ProgressMeter, Run
from msgstore.jobs.workers import worker_catalogue

TASK_MESSAGES = 2**17
"""Messages of one part. A source that reads any positions in the same time still has to be opened for each."""
MAX_PARTS = 16
"""Parts of one queue."""


@attrs.frozen
class QueuePart:
    """Positions of one queue. Picklable."""

    name: QueueName
    first: int = 0
    stop: int | None = None


@attrs.frozen
class ConvertedPart:
    """Result of one attempt to convert a part. Picklable."""

    place: str
    report: ConvertReport
    """Has one queue, with the counts of this part alone."""
    refused: tuple[tuple[int, str], ...]
    """Position and reason."""


def queue_parts(source: Source, spec: SourceSpec, queues: Sequence[QueueInfo], first: int = 0) -> list[QueuePart]:
    """Return the parts of the queues from position ``first`` on: one of each, if the source cannot read any positions."""
    is_random = Capability.RANDOM_ACCESS in worker_catalogue().source(spec.source.name).capabilities
    found: list[QueuePart] = []
    for info in queues:
        if not is_random:
            found.append(QueuePart(info.name, first))
            continue
        count = cast("RandomAccessSource", source).count(info.name)
        step = max(TASK_MESSAGES, -(-count // MAX_PARTS))
        found += (QueuePart(info.name, at, at + step) for at in range(first, max(count, first + 1), step))
    return found


def plan_parts(job: ConvertJob) -> tuple[ConvertReport, list[QueuePart]]:
    """Return an empty report with the queues, and the parts. Raises ConfigError for a job that cannot be done in parts."""
    needs = [option for option, given in (("--dry-run", job.dry_run), ("--limit", job.selection.limit is not None)) if given]
    if Capability.JOINS not in worker_catalogue().sink(job.sink.name).capabilities:
        needs.append(f"the sink {job.sink.name}")
    if needs:
        raise ConfigError(f"{' and '.join(needs)}: messages are converted one after the other. Use --runner local.")
    report = ConvertReport(job.destination)
    with open_source(job.source) as source:
        queues = find_queues(source, job, report)
        return report, queue_parts(source, job.source, queues, job.selection.first)


def convert_part(numbered: tuple[int, QueuePart], job: ConvertJob, staging: str) -> ConvertedPart:
    """Convert one part, in any process. Raises as ``convert``."""
    number, part = numbered
    refused: list[tuple[int, str]] = []
    report = ConvertReport(job.destination, [QueueCounts(QueueInfo(name=part.name))])
    with errors(Path(job.destination)):
        place = str(create_attempt(staging, number) / "content")
        with open_source(job.source) as source, open_sink(job, place) as sink:
            conversion = Conversion(
                job, report, source, sink, on_refused=lambda _, position, why: refused.append((position, why))
            )
            conversion.convert_queue(report.queues[0], part.first, part.stop)
            sink.flush()
            sink.finish()
    return ConvertedPart(place, report, tuple(refused))


def convert_in_parts(
    job: ConvertJob,
    report: ConvertReport,
    parts: Sequence[QueuePart],
    run: Run[tuple[int, QueuePart], ConvertedPart],
    meter: ProgressMeter,
    on_refused: Refused | None = None,
) -> ConvertReport:
    """Execute a job, whose parts ``run`` executes. Raises as ``convert``, and then nothing is left."""
    destination, files = absolute(job.destination), Files()
    queues = {one.info.name: one for one in report.queues}
    with StagingDirectory.create_locked(destination, [job.source.path]) as staging:
        if (work := Path(staging.path).parent / WORK).exists():
            if not job.restart:
                raise StoreError(f"{destination}: an unfinished conversion is there. End it as it was begun, or use --restart.")
            delete_work(work)
        joined = Path(staging.path, "joined")
        with errors(destination), open_sink(job, str(joined)) as sink:
            check_kinds(joined, destination)
            converted = run(partial(convert_part, job=job, staging=staging.path), enumerate(parts))
            for part, found in zip(parts, converted, strict=True):
                counts = queues[part.name]
                counts.add(found.report.queues[0])
                report.reasons.update(found.report.reasons)
                report.others.update(found.report.others)
                report.damage += (one for one in found.report.damage if one not in report.damage)
                for position, reason in found.refused if on_refused is not None else ():
                    cast("Refused", on_refused)(counts.info, position, reason)
                cast("JoiningSink", sink).join([found.place])
                meter.add(found.report.queues[0].bytes)
            sink.flush()
            sink.finish()
        check_kinds(joined, destination)
        with staging.publishing() as content:
            files.replace(joined, content)
    return report
