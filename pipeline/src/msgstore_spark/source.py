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
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError
from msgstore.jobs.columns.batches import as_text, damage_batch, record_batches, segments_batch, spans_batch
from msgstore.jobs.columns.schemas import DAMAGE, RECORD, SEGMENTS, project, records_schema
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore_spark.options import ReadOptions
from msgstore_spark.stream import SegmentStreamReader
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


def full_schema(options: ReadOptions, found: Found) -> pa.Schema:
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

    def __init__(self, inputs: tuple[SegmentInput, ...], rows: tuple[pa.RecordBatch, ...] = ()) -> None:
        super().__init__(None)
        self.inputs = inputs
        self.rows = rows
        """Rows that were already known when the job was planned."""


class SegmentReader(DataSourceReader):
    """Reader of one query. Created on the driver, and pickled to the executors with one partition per task."""

    def __init__(self, options: ReadOptions, found: Found, schema: pa.Schema) -> None:
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
        tasks = self._options.pack(self._found.inputs, bodies=self._bodies)
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
        return self.__dict__ | {"_found": Found((), (), (), ())}


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
