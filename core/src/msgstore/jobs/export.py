"""Exporting the records of any number of segments as a directory of Parquet files. Needs pyarrow.

The rows are the relation ``records`` (:mod:`msgstore.jobs.columns.batches`): every whole record that a scan reports, of copies
of an id in a segment the first. Copies in other segments are rows too, and so are records without references.
``export_task`` writes the files of one task, wherever the engine wants; they appear together, when all are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from msgstore.contract import ConfigError, Damage
from msgstore.jobs.inputs import SegmentInput, SegmentJob
from msgstore.jobs.reading.segment_check import judge
from msgstore.jobs.reports import Findings, sums
from msgstore.jobs.sources import find_offline
from msgstore.jobs.tasks import Meter, Run, Task, pack
from msgstore.jobs.workers import OpenCodec, check_pyarrow, open_codec
from msgstore.plugins.catalogue import Catalogue

if TYPE_CHECKING:
    import pyarrow as pa

    from msgstore.jobs.output.datasets import DatasetWriter, Written

Numbered = tuple[int, Task]


@attrs.frozen
class ExportJob(SegmentJob):
    """Picklable. Made and checked by :func:`plan_export`."""

    to: str
    schema: pa.Schema
    """Of all columns that are read: those that are asked for, and those that rows are parted by."""
    partition_by: tuple[str, ...] = ()
    codec: str | None = None
    """The codec that bodies are decoded with into columns of their own."""

    @property
    def columns(self) -> list[str]:
        """Return the columns of the files. Partition columns are in the names of directories."""
        return [name for name in self.schema.names if name not in self.partition_by]

    @property
    def file_schema(self) -> pa.Schema:
        """Return the schema of the files."""
        from msgstore.jobs.columns.schemas import project

        return project(self.schema, self.columns)

    def tasks(self) -> list[Numbered]:
        """The same from every engine, so that the files are the same, too."""
        return list(enumerate(pack(self.found.inputs)))


def plan_export(
    catalogue: Catalogue,
    sources: Sequence[Path],
    destination: Path,
    *,
    columns: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    body: str | None = None,
    records: Mapping[str, int] | None = None,
) -> ExportJob:
    """Read no segment, write nothing. ``columns``: none stands for all; ``body`` is the codec that adds some.

    Raises StoreError (no segments, destination in use), StoreLocked, ConfigError (no pyarrow, no such column), PluginError.
    """
    check_pyarrow("export is done")
    from msgstore.jobs.columns.schemas import project, records_schema

    found = find_offline(catalogue, sources, records, destination=destination)
    partition_by = list(dict.fromkeys(partition_by))
    everything = records_schema(found.inputs, None if body is None else open_codec(body))
    read = list(dict.fromkeys([*(columns or everything.names), *partition_by]))
    schema = project(everything, read)
    _check_partitions(schema, partition_by)
    return ExportJob(tuple(map(str, sources)), found, str(destination), schema, tuple(partition_by), body)


def _check_partitions(schema: pa.Schema, names: Sequence[str]) -> None:
    import pyarrow as pa

    for name in names:
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise ConfigError(f"rows cannot be parted by the column {name!r}: it is {kind}, and a directory's name is text")
    if set(names) >= set(schema.names):
        raise ConfigError(f"every column is one that rows are parted by ({', '.join(names)}); name another that the files have")


# -- one task -----------------------------------------------------------------------------------------------------------------


Exported = tuple["Written", list[tuple[int, int, tuple[Damage, ...]]]]
"""The files of one task; of each of its segments rows, bytes of bodies, damage. Picklable, small."""


def export_task(task: Numbered, job: ExportJob, staging: str) -> Exported:
    """Raises StoreError (a segment that is not damaged, and cannot become rows), StoreIOError, PluginError."""
    from msgstore.jobs.output.datasets import DatasetWriter

    number, items = task
    codec = None if job.codec is None else open_codec(job.codec)
    with DatasetWriter(staging, number, job.file_schema) as writer:
        found = [_export(item, job, codec, writer) for item in items]
        return writer.finish(), found


def _export(
    item: SegmentInput, job: ExportJob, codec: OpenCodec | None, writer: DatasetWriter
) -> tuple[int, int, tuple[Damage, ...]]:
    import pyarrow.compute as pc

    from msgstore.jobs.columns.batches import Wanted, record_batches

    rows = size = 0
    for batch in record_batches(item, job.schema, Wanted(tuple(job.schema.names)), codec):
        for where, part in _parts(batch, job.partition_by):
            writer.write(where, part.select(job.columns))
        rows += batch.num_rows
        if "body" in job.schema.names:
            size += pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0
    return rows, size, judge(item).damage


def _parts(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows by the folders that they belong into."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from msgstore.jobs.output.datasets import folder

    if not names:
        yield "", batch
        return
    keys = pa.Table.from_batches([batch.select(list(names))]).group_by(list(names), use_threads=False).aggregate([])
    for key in keys.to_pylist():
        mask = None
        for name, value in key.items():
            column = batch.column(name)
            alike = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            mask = alike if mask is None else pc.and_(mask, alike)
        yield folder(list(key.items())), batch if keys.num_rows == 1 else batch.filter(mask)


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class ExportedInput:
    path: str
    format: str
    size: int
    rows: int = 0
    body_bytes: int = 0
    """Of the bodies that were written, before they were compressed."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "input", **attrs.asdict(self)}


@attrs.define
class ExportReport(Findings):
    """The same from every engine."""

    sources: tuple[str, ...]
    destination: str
    columns: list[str]
    inputs: list[ExportedInput] = attrs.field(factory=list)
    """By rank."""
    files: int = 0
    written: int = 0
    """Bytes of these files."""

    @property
    def rows(self) -> int:
        return sum(found.rows for found in self.inputs)

    def as_json(self) -> dict[str, Any]:
        return self.summary(
            sources=list(self.sources),
            destination=self.destination,
            columns=self.columns,
            segments=len(self.inputs),
            **sums(self.inputs, "size", "rows", "body_bytes"),
            files=self.files,
            written=self.written,
            damaged=self.damaged,
        )


def export(job: ExportJob, run: Run[Numbered, Exported], meter: Meter) -> ExportReport:
    """Carry a job out. ``run`` says where tasks are done.

    Raises StoreError, StoreIOError, PluginError; then nothing is left.
    """
    from msgstore.jobs.output.datasets import dataset

    report = ExportReport(job.sources, job.to, job.columns)
    job.found.add_to(report)
    with dataset(job.to, job.sources) as staging:
        tasks, attempts = job.tasks(), []
        exported = run(partial(export_task, job=job, staging=staging.path), tasks)
        for (_, items), (written, found) in zip(tasks, exported, strict=True):
            attempts.append(written)
            for item, (rows, size, damage) in zip(items, found, strict=True):
                report.inputs.append(ExportedInput(item.path, item.format, item.size, rows, size))
                report.add_damage(item.path, damage)
                meter.add(item.size)
        files = staging.commit(attempts, job.file_schema)
    report.files, report.written = len(files), sum(size for _, size in files)
    return report
