"""Salvage and migration: copy every intact record of any segments into a new store, and account for every byte of the input.

``examine`` reads a segment to its end and finds its intact records. Of all copies of an id, the runner selects the first by
rank and offset, or in a migration the one that the store's index points to, and omits ids without references. ``copy`` writes
the selected records of a task into a part of the new store; :meth:`StoreStaging.commit` makes one store of the parts.
``examine`` and ``copy`` run in any process: they depend on their arguments only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Buffer, Capability, CheckBody, Columns, ConfigError, Damage, PluginError, RecordError, StoreError
from msgstore.files import Files
from msgstore.jobs.counts import named_counts, sums_of
from msgstore.jobs.inputs import NO_FORMAT, JobInputs, SegmentInput, SegmentJob, find_inputs, open_input
from msgstore.jobs.live_records import find_live
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import PartWriter, StorePart, StoreSpec, backends_of, batches
from msgstore.jobs.output.staging_directory import check_destination, errors
from msgstore.jobs.reading.chains import INVALID_BODY
from msgstore.jobs.reading.segment_check import IntactRecords, checksum, intact_records, read_intact
from msgstore.jobs.reports import Findings, sums
from msgstore.jobs.store_directories import virtual_hosts
from msgstore.jobs.tasks import TASK_SIZE, ProgressMeter, Run, group_into_tasks, map_segments
from msgstore.jobs.workers import body_check
from msgstore.option_values import Backend, backend_of
from msgstore.plugins.blame import PLUGIN_FAILED
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import OpenFormat
from msgstore.scan.formats import OWN_RECORD, assigned_byte

log = logging.getLogger("msgstore.bulk")

TOO_LARGE = "message_too_large"
"""Reason for a record whose body is too large for the format of the new store."""
NAMED = 5
"""Missing ids that an error names."""


@attrs.frozen
class SalvageJob(SegmentJob):
    """Picklable. Made and checked by :func:`plan_salvage`."""

    target: StoreSpec
    max_body: int
    """Largest body, in bytes, that fits into a record of the target's format."""
    as_they_are: bool = True
    """True if records of the target's format, if it is VERBATIM, are copied byte for byte. Otherwise all are encoded again."""
    check_body: Backend | None = None
    """Codec that bodies must be valid for."""
    counts: str | None = None
    """A file of counts (:mod:`msgstore.jobs.counts`): ids that it does not name are dead."""
    live: str | None = None
    """A directory of live records (:mod:`msgstore.jobs.live_records`): other copies of their ids are not copied."""
    complete: bool = False
    """True for a migration: a missing message is an error, and no store is made."""
    task_size: int = TASK_SIZE
    """Bytes of segments that one task copies. Each task begins a segment of the new store."""

    def tasks(self) -> list[tuple[SegmentInput, ...]]:
        """Return the same tasks for every runner, so that the new store is the same."""
        return group_into_tasks(self.found.inputs, self.task_size)

    def for_workers(self) -> SalvageJob:
        """Return the job without its segments, for tasks that get only their own."""
        return attrs.evolve(self, found=JobInputs((), (), (), ()))


def plan_salvage(
    catalogue: Catalogue,
    sources: Sequence[Path],
    destination: Path,
    *,
    index: str = "ets",
    format: str = "v2",  # noqa: A002 - the key of the configuration
    record: str | None = None,
    body: str | Backend | None = None,
    check_body: str | Backend | None = None,
    records: Mapping[str, int] | None = None,
    bind: Mapping[str, int] | None = None,
    counts: Path | None = None,
    complete: bool = False,
) -> SalvageJob:
    """Return the job, after a check of every name and path. Reads no segment and writes nothing.

    ``records`` binds record types of the sources in addition to those that their directories remember. ``record`` is the type
    that all records are encoded as; None copies those of ``format`` as they are. ``bind`` has its type byte, if no directory
    remembers and no specification assigns one. ``body`` is the codec that the new store remembers, by default that of the
    sources, or ``raw``: its name, or a JSON object with ``use`` and its options. Bodies are copied as they are stored; those
    that are not valid for ``check_body`` are damage.

    Raises StoreError (no segments, destination in use), StoreLocked, ConfigError, PluginError.
    """
    catalogue.index(index)
    catalogue.format(format)
    found = find_inputs(catalogue, sources, records=records, offline=True)
    check_destination(destination, found.paths(sources))
    bound = sorted({pair for item in found.inputs if item.format == format for pair in item.records})
    if record is not None:  # no format assigns the byte of a third party's type: it has the byte that it has there
        byte = None if record == OWN_RECORD else {**(bind or {}), **dict(bound)}.get(record)
        if byte is None and record != OWN_RECORD:
            byte = assigned_byte(catalogue, format, record, "salvage")
        bound = [] if byte is None else [(record, byte)]
    elif len(dict(bound)) < len(bound) or len({byte for _, byte in bound}) < len(bound):
        raise ConfigError(
            f"the sources bind record types in different ways: {', '.join(f'{name}={byte}' for name, byte in bound)}; one "
            "store cannot hold both. Name a record type that all are encoded as (--record), or salvage them one by one"
        )
    if len(hosts := virtual_hosts({item.store for item in found.inputs})) > 1:
        log.warning("the sources are %d virtual hosts (%s), which become one store", len(hosts), ", ".join(hosts))
    codecs = list(found.codecs or ("raw",))
    if found.unknown and codecs != ["raw"]:
        codecs.append(f"unknown ({found.unknown[0]})")
    codec = None if body is None else backend_of(body)
    if len(codecs) > 1 and codec is None:
        raise ConfigError(
            f"the sources remember different body codecs: {', '.join(codecs)}; bodies are copied as they are stored. Salvage "
            "them one by one, or name the codec that fits all (--body)"
        )
    for name in sorted({item.format for item in found.inputs} - {format}):
        types = {record for item in found.inputs if item.format == name for record, _ in item.records}
        kept = [catalogue.format(name), *(catalogue.record(name, record) for record in sorted(types))]
        if lost := [field.name for descriptor in kept for field in descriptor.fields]:
            option = "--to" if complete else "--format"
            log.warning(
                "fields of the format %s are not copied, except what is in bodies: %s. To keep them: %s %s",
                name, ", ".join(lost), option, name,
            )  # fmt: skip
    if codec is None:
        _check_remembered(catalogue, codecs[0], found.inputs)
    elif found.codecs and found.codecs != (codec.name,):
        others = next(name for name in found.codecs if name != codec.name)
        log.warning("some sources remember the body codec %s, and the new store remembers %s", others, codec.name)
    target = StoreSpec(str(destination), index, format, record or OWN_RECORD, codec or codecs[0], tuple(bound))
    if record is None and len(found.record_types) == 1 and not found.unknown:
        with suppress(ConfigError, PluginError):  # the sources agree on the type of new messages, and the format has it
            wanted = attrs.evolve(target, record=found.record_types[0])
            backends_of(wanted, catalogue)
            target = wanted
    max_body = backends_of(target, catalogue).write_format.format.max_body
    checked = None if check_body is None else backend_of(check_body)
    body_check(checked)
    given = tuple(map(str, sources))
    return SalvageJob(given, found, target, max_body, record is None, checked, named_counts(counts), complete=complete)


def _check_remembered(catalogue: Catalogue, codec: str, inputs: Sequence[SegmentInput]) -> None:
    for item in inputs[:1]:
        try:
            attrs.evolve(catalogue, remembered=dict(item.distributions)).body_codec(codec)
        except PluginError as error:
            raise type(error)(f"{item.store} remembers a body codec that is missing here: {error}") from None


# -- tasks --------------------------------------------------------------------------------------------------------------------


def examine(item: SegmentInput, job: SalvageJob) -> IntactRecords:
    """Read one segment. One that cannot be read is one damaged span. Raises PluginError."""
    is_valid = body_check(job.check_body)

    def read(path: Path, form: OpenFormat, data: Buffer) -> IntactRecords:
        check_segment = partial(_judge, form, job.max_body, is_valid)
        found = intact_records(path, form, data, check_segment if is_valid else None)
        if not is_valid and max(found.records.sizes, default=0) > job.max_body:
            found = intact_records(path, form, data, check_segment)
        return attrs.evolve(found, crc32=checksum(data, len(data)))

    found = read_intact(item, read)
    if job.live is None:
        return found
    with errors(Path(job.live)):
        return attrs.evolve(found, live=find_live(Path(job.live), item, found.records))


def _judge(form: OpenFormat, max_body: int, is_valid: CheckBody | None, msg_id: bytes, record: bytes) -> str | None:
    """Return why a record cannot be copied; None if it can."""
    if is_valid is None and len(record) <= max_body:
        return None
    try:
        body = form.format.decode(msg_id, record)
    except RecordError as error:
        return error.reason
    if len(body) > max_body:
        return TOO_LARGE
    return INVALID_BODY if is_valid is not None and not is_valid(msg_id, body) else None


@attrs.frozen
class Selection:
    """Records of one segment that are copied, by offset. Picklable."""

    item: SegmentInput
    crc32: int
    """CRC-32 of the segment as it was examined."""
    records: Columns


def copy(numbered: tuple[int, Iterable[Selection]], job: SalvageJob, staging: str) -> StorePart:
    """Write one part of the new store, for the task of this number.

    Raises StoreError if a segment has changed since it was examined, and StoreIOError.
    """
    task, picks = numbered
    with PartWriter(job.target, staging, task) as part:
        for pick in picks:
            if len(pick.records):
                with errors(Path(pick.item.path)), Files().view(Path(pick.item.path)) as data:
                    _copy_records(part, pick, data, job)
        return part.finish()


def _copy_records(part: PartWriter, pick: Selection, data: Buffer, job: SalvageJob) -> None:
    if checksum(data, len(data)) != pick.crc32:
        raise StoreError(
            f"{pick.item.path}: changed while it was copied. Stop the program that writes there, and run the job again."
        )
    form, ids, columns = open_input(pick.item), pick.records.id_list(), pick.records
    is_copied = job.as_they_are and form.name == job.target.format and Capability.VERBATIM in form.descriptor.capabilities
    for begin, end in batches(columns.sizes):
        places = zip(columns.offsets[begin:end], columns.sizes[begin:end], strict=True)
        records = [data[offset : offset + size] for offset, size in places]
        if is_copied:
            part.add_records(ids[begin:end], records)
        else:
            part.add(ids[begin:end], list(map(form.format.decode, ids[begin:end], records)))


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class InputReport:
    """One segment of the source, byte by byte: ``header + good + duplicates + dead + holes + damaged == size``."""

    path: str
    format: str
    size: int
    header: int
    good: int = 0
    """Bytes of the records that were copied."""
    duplicates: int = 0
    """Bytes of the records of whose id another copy was copied."""
    dead: int = 0
    """Bytes of the records without references; 0 if no counts were given."""
    holes: int = 0
    damaged: int = 0
    records: int = 0
    """Records that were copied."""
    recovered: Columns = attrs.field(factory=Columns)
    """Copied records that were found after or inside a damaged span."""

    @classmethod
    def of(cls, item: SegmentInput, found: IntactRecords) -> InputReport:
        """Return the report of a segment of which no record is copied yet."""
        damaged = sum(span.size for span in found.damage)
        return cls(item.path, item.format, found.size, found.header, holes=found.holes, damaged=damaged)

    def as_json(self) -> dict[str, Any]:
        return {"kind": "input", **attrs.asdict(self, recurse=False), "recovered": len(self.recovered)}

    def recovered_as_json(self) -> Iterator[dict[str, Any]]:
        for msg_id, offset, size, _ in self.recovered.rows():
            yield {"kind": "recovered", "path": self.path, "offset": offset, "size": size, "id": msg_id.hex()}


@attrs.define
class SalvageReport(Findings):
    """Result of a salvage. Without counts, no record is known to be dead: one copy of each id is copied."""

    sources: tuple[str, ...]
    destination: str
    counted: bool
    """True if counts were given, or are those of the store. False if each message was copied with one reference."""
    inputs: list[InputReport] = attrs.field(factory=list)
    """By rank: of several copies of an id, the first was copied."""
    missing: int = 0
    """Number of messages with references but without an intact record."""

    @property
    def messages(self) -> int:
        return sum(found.records for found in self.inputs)

    @property
    def recovered(self) -> int:
        return sum(len(found.recovered) for found in self.inputs)

    def as_json(self) -> dict[str, Any]:
        return self.summary(
            sources=list(self.sources),
            destination=self.destination,
            counted=self.counted,
            segments=len(self.inputs),
            messages=self.messages,
            recovered=self.recovered,
            missing=self.missing,
            **sums(self.inputs, "size", "header", "good", "duplicates", "dead", "holes", "damaged"),
        )


def report_of(
    job: SalvageJob, rows: Iterable[tuple[InputReport, Sequence[Damage]]], missing: int, names: Sequence[bytes]
) -> SalvageReport:
    """Return the report of the job. ``rows`` are by rank; ``names``: some of the missing ids.

    Raises PluginError if no message could be read because of a plugin, StoreError if a migration would lose messages.
    """
    report = SalvageReport(job.sources, job.target.path, job.counts is not None, missing=missing)
    job.found.add_to(report)
    for found, damage in rows:
        report.inputs.append(found)
        report.add_damage(found.path, damage)
    of_plugins = (span for span in report.damage if PLUGIN_FAILED in span.reason or span.reason.startswith(NO_FORMAT))
    if not report.messages and (spot := next(of_plugins, None)):
        reason = spot.reason.removeprefix("unreadable: ")
        raise PluginError(f"{spot.path}: {reason.rstrip('.')}. No message could be read, so there is no new store.")
    advice = "Use 'msgstore salvage' to copy what there is."
    if job.complete and missing:
        named = ", ".join([*(name.hex() for name in names), *(["..."] if missing > len(names) else [])])
        raise StoreError(
            f"{job.sources[0]}: {missing:,} messages that have references are not there, or damaged: {named}. {advice}"
        )
    if job.complete and report.damage and job.counts is None:
        spot = report.damage[0]
        raise StoreError(
            f"{spot.path}: {spot.size:,} bytes at offset {spot.offset:,} are damaged ({spot.reason}), and without counts "
            f"nobody knows whether a message was there. {advice}"
        )
    return report


# -- on one machine -----------------------------------------------------------------------------------------------------------


def salvage(job: SalvageJob, run: Run[Any, Any], meter: ProgressMeter) -> SalvageReport:
    """Execute a job. ``run`` executes the tasks; ids and locations of all records are in this process's memory."""
    tasks, light = job.tasks(), job.for_workers()
    counts = None if job.counts is None else {msg_id: count for msg_id, count in sums_of(job.counts).items() if count > 0}
    taken: set[bytes] = set()
    picks, rows = [], []
    for item, found in map_segments(run, partial(examine, job=light), tasks, meter):
        report = InputReport.of(item, found)
        picks.append(Selection(item, found.crc32, _select(found, report, taken, None if counts is None else counts.keys())))
        rows.append((report, found.damage))
    missing = sorted(counts.keys() - taken) if counts else []
    result = report_of(job, rows, len(missing), missing[:NAMED])
    with StoreStaging.begin(job.target, sources=job.sources) as staging:
        rest = iter(picks)
        numbered = ((number, list(islice(rest, len(task)))) for number, task in enumerate(tasks))

        def parts() -> Iterator[StorePart]:
            """Yield the parts. They are written while ``commit`` takes them, which adds the state of the job to an error."""
            for part, task in zip(run(partial(copy, job=light, staging=staging.path), numbered), tasks, strict=True):
                meter.add(sum(item.size for item in task))
                yield part

        kept = None if counts is None else ((i, count) for i, count in counts.items() if i in taken)
        staging.commit(parts(), kept, check=job.found.check_no_writer_since)
    return result


def _select(found: IntactRecords, report: InputReport, taken: set[bytes], alive: Set[bytes] | None) -> Columns:
    """Return the records of a segment that are copied, and add them to the report and to ``taken``, the ids copied so far.

    ``alive``: ids with a reference; None if unknown.
    """
    ids = found.records.id_list()
    new = set(ids)
    has_all = len(new) == len(ids) and taken.isdisjoint(new) and (alive is None or alive >= new) and 0 not in found.live
    if has_all and not any(found.recovered):
        taken |= new  # the usual case
        report.good, report.records = sum(found.records.sizes), len(ids)
        return found.records
    picked = Columns()
    live = found.live or bytes([1]) * len(ids)
    for row, is_recovered, is_live in zip(found.records.rows(), found.recovered, live, strict=True):
        msg_id, _, size, _ = row
        if alive is not None and msg_id not in alive:
            report.dead += size
        elif msg_id in taken or not is_live:
            report.duplicates += size
        else:
            taken.add(msg_id)
            picked.add(*row)
            report.good += size
            report.records += 1
            if is_recovered:
                report.recovered.add(*row)
    return picked
