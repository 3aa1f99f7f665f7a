"""Spark data source ``msgstore``: segments as DataFrames. Imported by the driver's and the executors' Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError
from msgstore.jobs.columns.batches import as_text, damage_batch, record_batches, segments_batch, spans_batch
from msgstore.jobs.columns.schemas import DAMAGE, RECORD, SEGMENTS, project, records_schema
from msgstore.jobs.inputs import JobInputs, SegmentInput
from msgstore.jobs.reading.segment_check import UNSETTLED, SegmentRange, TailPosition, poll
from msgstore_spark.options import ReadOptions
from msgstore_spark.tasks import freeze_imports
from msgstore_spark.writer import StoreWriter


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("msgstore")``, for sessions that could not import ``pyspark_msgstore`` when they started."""
    spark.dataSource.register(MsgStoreSource)


class MsgStoreSource(DataSource):
    """Data source of ``spark.read.format("msgstore").load(PATH)``. :class:`msgstore_spark.options.ReadOptions` has its options.

    Spark does not tell a data source which columns a query needs. With ``.schema("id binary, offset bigint")``, bodies are not
    read. Each query lists the directories again.
    """

    @classmethod
    def name(cls) -> str:
        return "msgstore"

    def schema(self) -> StructType:
        options = ReadOptions.of(self.options)
        return from_arrow_schema(full_schema(options, options.find()))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        found = options.find()
        return SegmentReader(options, found, columns(full_schema(options, found), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a new store. In every mode, existing data at the destination is an error."""
        return StoreWriter(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        options = ReadOptions.of(self.options)
        if options.relation != "records":
            raise ConfigError(f"msgstore: a stream has records only; read the relation {options.relation!r} with spark.read")
        return SegmentStreamReader(options, columns(full_schema(options, options.find()), schema))


def full_schema(options: ReadOptions, found: JobInputs) -> pa.Schema:
    """Return all columns of the requested relation."""
    if options.relation == "damage":
        return DAMAGE
    if options.relation == "segments":
        return SEGMENTS
    return records_schema(found.inputs, options.codec())


def columns(full: pa.Schema, schema: StructType) -> pa.Schema:
    """Return the columns of ``schema``, in its order. Raises ConfigError for an unknown column, or one of another type."""
    chosen = project(full, schema.fieldNames())
    for ours, theirs in zip(from_arrow_schema(chosen), schema, strict=True):
        if ours.dataType != theirs.dataType:
            raise ConfigError(
                f"msgstore: the column {ours.name!r} is {ours.dataType.simpleString()}, not {theirs.dataType.simpleString()}; "
                f"cast it after .load()"
            )
    return chosen


_WITHOUT_BODY = set(RECORD.names) - {"body"}


class SegmentPartition(InputPartition):
    """Input of one task."""

    def __init__(
        self, inputs: tuple[SegmentInput, ...], rows: tuple[pa.RecordBatch, ...] = (), stretches: tuple[SegmentRange, ...] = ()
    ) -> None:
        super().__init__(None)
        self.inputs = inputs
        self.rows = rows
        """Rows that were already known when the job was planned."""
        self.stretches = stretches
        """Range that a micro-batch reads of each input."""


class SegmentReader(DataSourceReader):
    """Reader of one query. Created on the driver, and pickled to the executors with one partition per task."""

    def __init__(self, options: ReadOptions, found: JobInputs, schema: pa.Schema) -> None:
        self._options = options
        self._found = found
        self._schema = schema
        self._bodies = options.relation != "records" or not _WITHOUT_BODY.issuperset(schema.names)
        self._only: dict[str, Any] = {}
        """Ids and types of the wanted records."""
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]  # its class docstring has the reason

    def push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply the filters that need no body, and return the filters that Spark must evaluate."""
        names = ("store", "file", "id", "type") if self._options.relation == "records" else ("store", "file")
        accepted: dict[str, frozenset[Any]] = {}
        remaining = []
        for given in filters:
            if isinstance(given, EqualTo | In) and len(given.attribute) == 1 and given.attribute[0] in names:
                values = frozenset(given.value if isinstance(given, In) else [given.value]) - {None}  # NULL equals nothing
                accepted[given.attribute[0]] = accepted.get(given.attribute[0], values) & values
            else:
                remaining.append(given)

        def is_accepted(path: str) -> bool:
            shown = dict(zip(("store", "file"), map(as_text, os.path.split(path)), strict=True))
            return all(shown[name] in accepted[name] for name in shown.keys() & accepted.keys())

        inputs = tuple(found for found in self._found.inputs if is_accepted(found.path))
        damage = tuple(span for span in self._found.damage if is_accepted(span.path))
        self._found = attrs.evolve(self._found, inputs=inputs, damage=damage)
        self._only = {"ids": accepted.get("id"), "types": accepted.get("type")}
        return remaining

    def partitions(self) -> list[InputPartition]:
        tasks = self._options.group_into_tasks(self._found.inputs, bodies=self._bodies)
        partitions: list[InputPartition] = [SegmentPartition(task) for task in tasks]
        if self._options.relation == "damage" and self._found.damage:
            partitions.append(SegmentPartition((), (spans_batch(self._found.damage),)))
        return partitions or [SegmentPartition(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentPartition)
        yield from (rows.select(self._schema.names) for rows in partition.rows)
        if self._options.relation == "records":
            codec = self._options.codec()
            for found in partition.inputs:
                yield from record_batches(found, self._schema, codec, **self._only)
        elif self._options.relation == "damage":
            yield damage_batch(partition.inputs).select(self._schema.names)
        else:
            yield segments_batch(partition.inputs).select(self._schema.names)
        freeze_imports()

    def __getstate__(self) -> dict[str, Any]:
        """Omit the list of all segments: a task receives its own partition."""
        return self.__dict__ | {"_found": JobInputs((), (), (), ())}


class _PushFilters:
    """Callable that replaces ``reader.pushFilters``, for any value of ``spark.sql.python.filterPushdown.enabled``.

    If that setting is off, which is the default, Spark rejects readers that override the method, because their filters would be
    ignored. This reader is correct without the call. ``__func__`` makes Spark see the method of the base class.
    """

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


# -- streams ------------------------------------------------------------------------------------------------------------------


Offset = dict[str, dict[str, int]]


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader: records of stores that are being written, each at least once.

    The driver finds new records by scanning the new bytes of changed files. An offset has, for each file, the range that was
    read last (``TailPosition``). A batch that Spark repeats after a failure reads the same ranges. It reads nothing of a file
    that was rewritten in the meantime; the next batch reads that file from its beginning. Records that a collection moves are
    read again; ``dropDuplicates(["id"])`` removes them.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._seen: dict[str, tuple[int, int]] = {}
        """Files without new records, as of ``poll``."""
        self._target: Offset | None = None
        """End of a query with ``Trigger.AvailableNow``: the records that existed when it started. None for other queries."""

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's names
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_files:
            return ReadMaxFiles(self._options.max_files)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.latestOffset({}, ReadAllAvailable())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch; ``start`` itself if there is nothing new.

        It has at least one file, so the first may exceed a limit in bytes.
        """
        inputs = [found for found in self._options.find().inputs if self._target is None or found.path in self._target]
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        remaining = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        changed: Offset = {}
        known = {path: TailPosition(**position) for path, position in start.items()}
        for found, position in poll(inputs, known, self._seen):
            if self._target is not None:
                position = _limit_to(position, TailPosition(**self._target[found.path]))
            size = position.end - position.begin
            if size <= 0:
                continue
            if remaining is not None:
                if changed and size > remaining:
                    break
                remaining -= size
            changed[found.path] = attrs.asdict(position)
            if len(changed) == files:
                break
        if not changed:
            return start
        existing = {found.path for found in inputs}
        return {path: known for path, known in start.items() if self._target or path in existing} | changed

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        changed = {path: TailPosition(**new) for path, new in end.items() if new != start.get(path)}
        # Grouped by the sizes of the ranges: the sizes of whole files do not matter here.
        inputs = [
            attrs.evolve(found, size=changed[found.path].end - changed[found.path].begin)
            for found in self._options.find().inputs
            if found.path in changed
        ]
        tasks = self._options.group_into_tasks(inputs)
        return [SegmentPartition(task, stretches=tuple(changed[found.path] for found in task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentPartition)
        codec = self._options.codec()
        for found, stretch in zip(partition.inputs, partition.stretches, strict=True):
            yield from record_batches(found, self._schema, codec, stretch=stretch)


def _limit_to(position: TailPosition, target: TailPosition) -> TailPosition:
    """Return ``position`` limited to the end of ``target``.

    A file that was rewritten after ``target`` was taken is not read in this query; the next query reads all of it.
    """
    if position.end <= target.end:
        return position
    return attrs.evolve(position, end=target.end, crc32=target.crc32, mtime_ns=UNSETTLED)
