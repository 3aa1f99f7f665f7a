"""The data source ``msgstore``: segments as DataFrames. Imported by the driver's and the executors' Python."""

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
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError
from msgstore.jobs.columns.batches import Wanted, damage_batch, record_batches, segments_batch, spans_batch
from msgstore.jobs.columns.codecs import OpenCodec, open_codec
from msgstore.jobs.columns.schemas import DAMAGE, RECORD, SEGMENTS, project, records_schema
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore.jobs.reading.segment_check import judge
from msgstore_spark.filters import push
from msgstore_spark.options import ReadOptions
from msgstore_spark.settling import settle
from msgstore_spark.stream import SegmentStreamReader
from msgstore_spark.writer import StoreWriter


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("msgstore")`` known where ``pyspark_msgstore`` could not be imported when the session began."""
    spark.dataSource.register(MsgStoreSource)


class MsgStoreSource(DataSource):
    """``spark.read.format("msgstore").load(PATH)``; the options are those of :class:`msgstore_spark.options.ReadOptions`.

    Spark does not say which columns a query uses: give ``.schema("id binary, offset bigint")`` the ones that are needed, and
    bodies are not even looked at. Each query lists the directories anew.
    """

    @classmethod
    def name(cls) -> str:
        return "msgstore"

    def schema(self) -> StructType:
        asked = ReadOptions.of(self.options)
        return from_arrow_schema(full_schema(asked, asked.find()))

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = ReadOptions.of(self.options)
        found = asked.find()
        return SegmentReader(asked, found, columns(full_schema(asked, found), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A fresh store, whatever the mode: what stands at the destination is never written over."""
        return StoreWriter(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        asked = ReadOptions.of(self.options)
        if asked.relation != "records":
            raise ConfigError(f"msgstore: a stream has records only; read the relation {asked.relation!r} with spark.read")
        return SegmentStreamReader(asked, columns(full_schema(asked, asked.find()), schema))


def full_schema(asked: ReadOptions, found: Found) -> pa.Schema:
    """Every column of the relation that is asked for."""
    if asked.relation == "damage":
        return DAMAGE
    if asked.relation == "segments":
        return SEGMENTS
    return records_schema(found.inputs, codec_of(asked))


def codec_of(asked: ReadOptions) -> OpenCodec | None:
    return open_codec(asked.body) if asked.body else None


def columns(full: pa.Schema, schema: StructType) -> pa.Schema:
    """Of all columns those of a DataFrame's schema, in its order. Raises ConfigError for one that is not there, or is other."""
    chosen = project(full, schema.fieldNames())
    for ours, theirs in zip(from_arrow_schema(chosen), schema, strict=True):
        if ours.dataType != theirs.dataType:
            raise ConfigError(
                f"msgstore: the column {ours.name!r} is {ours.dataType.simpleString()}, not {theirs.dataType.simpleString()}; "
                f"cast it behind .load()"
            )
    return chosen


_WITHOUT_BODY = set(RECORD.names) - {"body"}


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, inputs: tuple[SegmentInput, ...], rows: tuple[pa.RecordBatch, ...] = ()) -> None:
        super().__init__(None)
        self.inputs = inputs
        self.rows = rows
        """Known already when the job was planned."""


class SegmentReader(DataSourceReader):
    """Made on the driver, and pickled to the executors with a share each."""

    def __init__(self, asked: ReadOptions, found: Found, schema: pa.Schema) -> None:
        self._asked = asked
        self._found = found
        self._schema = schema
        self._wanted = Wanted(tuple(schema.names))
        self._bodies = asked.relation != "records" or not _WITHOUT_BODY.issuperset(schema.names)
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]  # it says below why

    def push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what can be decided before bodies are read; returns the rest."""
        pushed = push(filters, records=self._asked.relation == "records")
        inputs = tuple(found for found in self._found.inputs if pushed.keeps(found))
        spots = tuple(spot for spot in self._found.damage if pushed.keeps_file(*os.path.split(spot.path)))
        self._found = attrs.evolve(self._found, inputs=inputs, damage=spots)
        self._wanted = attrs.evolve(self._wanted, ids=pushed.ids, types=pushed.types)
        return pushed.rest

    def partitions(self) -> list[InputPartition]:
        shares: list[InputPartition] = [Share(task) for task in self._asked.pack(self._found.inputs, bodies=self._bodies)]
        if self._asked.relation == "damage" and self._found.damage:
            shares.append(Share((), (spans_batch(self._found.damage),)))
        return shares or [Share(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        yield from (rows.select(self._schema.names) for rows in partition.rows)
        if self._asked.relation == "records":
            codec = codec_of(self._asked)
            for found in partition.inputs:
                yield from record_batches(found, self._schema, self._wanted, codec)
        elif self._asked.relation == "damage":
            yield damage_batch(partition.inputs).select(self._schema.names)
        else:
            yield segments_batch(judge(found).summary for found in partition.inputs).select(self._schema.names)
        settle()

    def __getstate__(self) -> dict[str, Any]:
        """For executors: each task is told its own share, not everything that was found."""
        return self.__dict__ | {"_found": Found((), (), (), ())}


class _PushFilters:
    """``reader.pushFilters``, whether ``spark.sql.python.filterPushdown.enabled`` is on or off.

    While it is off, the default, Spark refuses readers that override the method, lest their filters be ignored; the reader
    cannot ask. Ours loses nothing if it is not called, so to that question it answers that it has the method of its base class.
    """

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)
