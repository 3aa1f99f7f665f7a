"""Job ``export``: write the records of any number of segments as a directory of Parquet files. Needs pyarrow.

The rows are the relation ``records`` (:mod:`msgstore.jobs.columns.batches`): every whole record that a scan reports, and of
several copies of an id in a segment the first. Copies in other segments are rows too, and so are records without references.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from msgstore.config import Backend, backend_of
from msgstore.contract import ConfigError, Damage
from msgstore.jobs.inputs import SegmentJob
from msgstore.jobs.reading.segment_check import check_segment
from msgstore.jobs.reports import Findings, sums
from msgstore.jobs.sources import find_offline
from msgstore.jobs.tasks import ProgressMeter, Run, Task, group_into_tasks
from msgstore.jobs.workers import check_pyarrow, open_codec
from msgstore.plugins.catalogue import Catalogue

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class ExportJob(SegmentJob):
    """Picklable. Created and checked by :func:`plan_export`."""

    to: str
    schema: pa.Schema
    """All columns that are read: those of the files, and those of the partitions."""
    partition_by: tuple[str, ...] = ()
    codec: Backend | None = None
    """Codec that decodes bodies into additional columns."""

    @property
    def columns(self) -> list[str]:
        """Columns of the files. Partition columns are in the names of directories."""
        return [name for name in self.schema.names if name not in self.partition_by]

    def tasks(self) -> list[tuple[int, Task]]:
        """Return the tasks. They, and so the files, are the same with every runner."""
        return list(enumerate(group_into_tasks(self.found.inputs)))


def plan_export(
    catalogue: Catalogue,
    sources: Sequence[Path],
    destination: Path,
    *,
    columns: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    body: str | Backend | None = None,
    records: Mapping[str, int] | None = None,
) -> ExportJob:
    """Check every name and path. Reads no segment, writes nothing. Empty ``columns`` are all; the codec ``body`` adds some: its
    name, or a JSON object with ``use`` and its options.

    Raises StoreError (no segments, destination in use), StoreLocked, ConfigError (no pyarrow, no such column), PluginError.
    """
    check_pyarrow("export is done")
    import pyarrow as pa

    from msgstore.jobs.columns.schemas import project, records_schema

    found = find_offline(catalogue, sources, records, destination=destination)
    partition_by = list(dict.fromkeys(partition_by))
    codec = None if body is None else backend_of(body)
    everything = records_schema(found.inputs, None if codec is None else open_codec(codec))
    schema = project(everything, list(dict.fromkeys([*(columns or everything.names), *partition_by])))
    for name in partition_by:
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise ConfigError(f"rows cannot be parted by the column {name!r}: it is {kind}, and a directory's name is text")
    if set(partition_by) >= set(schema.names):
        named = ", ".join(partition_by)
        raise ConfigError(f"every column is one that rows are parted by ({named}); name another that the files have")
    return ExportJob(tuple(map(str, sources)), found, str(destination), schema, tuple(partition_by), codec)


# -- one task -----------------------------------------------------------------------------------------------------------------


def export_task(task: tuple[int, Task], job: ExportJob, staging: str) -> tuple[Any, list[tuple[int, int, tuple[Damage, ...]]]]:
    """Write the files of one task. Return them, and rows, bytes of bodies and damage of each segment: picklable, small.

    Raises StoreError for values that do not fit into a row, StoreIOError, PluginError.
    """
    import pyarrow.compute as pc

    from msgstore.jobs.columns.batches import record_batches
    from msgstore.jobs.columns.schemas import project
    from msgstore.jobs.output.datasets import DatasetWriter

    codec = None if job.codec is None else open_codec(job.codec)
    found = []
    writer = DatasetWriter(staging, task[0], project(job.schema, job.columns))
    for item in task[1]:
        rows = size = 0
        for batch in record_batches(item, job.schema, codec):
            for where, some in _by_folder(batch, job.partition_by):
                writer.write(where, some.select(job.columns))
            rows += batch.num_rows
            if "body" in job.schema.names:
                size += pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0
        found.append((rows, size, check_segment(item).damage))
    return writer.finish(), found


def _by_folder(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each folder."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from msgstore.jobs.output.datasets import folder

    if not names:
        yield "", batch
        return
    keys = pa.Table.from_batches([batch.select(list(names))]).group_by(list(names), use_threads=False).aggregate([])
    for key in keys.to_pylist():
        masks = [
            pc.is_null(batch.column(name)) if value is None else pc.fill_null(pc.equal(batch.column(name), value), False)
            for name, value in key.items()
        ]
        yield folder(list(key.items())), batch.filter(reduce(pc.and_, masks))


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class ExportedInput:
    """One segment of the source."""

    path: str
    format: str
    size: int
    rows: int = 0
    body_bytes: int = 0
    """Uncompressed bytes of the written bodies."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "input", **attrs.asdict(self)}


@attrs.define
class ExportReport(Findings):
    """Result of an export, the same with every runner."""

    sources: tuple[str, ...]
    destination: str
    columns: list[str]
    inputs: list[ExportedInput] = attrs.field(factory=list)
    """By rank."""
    files: int = 0
    written: int = 0
    """Bytes of the files."""

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


def export(job: ExportJob, run: Run[Any, Any], meter: ProgressMeter) -> ExportReport:
    """Execute a job; ``run`` executes its tasks. Raises StoreError, StoreIOError or PluginError, and then nothing is left."""
    from msgstore.jobs.columns.schemas import project
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
        files = staging.commit(attempts, project(job.schema, job.columns))
    report.files, report.written = len(files), sum(size for _, size in files)
    return report
