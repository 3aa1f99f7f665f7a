"""Spark data source ``msgstore``: segments as DataFrames. Imported by the driver's and the executors' Python."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError
from msgstore.jobs.columns.batches import damage_batch, record_batches, segments_batch, spans_batch
from msgstore.jobs.columns.schemas import RECORD
from msgstore.jobs.inputs import JobInputs
from msgstore.jobs.messages.columns import MESSAGES
from msgstore_spark.messages import MessageOptions, MessageReader
from msgstore_spark.options import ReadOptions, warn_of_unread
from msgstore_spark.schemas import MODIFIED, columns, constants_of, full_schema
from msgstore_spark.streams import NoStream, SegmentStreamReader
from msgstore_spark.tasks import SegmentPartition, freeze_imports, join_small, name_host, require_directory
from msgstore_spark.writer import StoreWriter


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("msgstore")``, for sessions that could not import ``pyspark_msgstore`` when they started."""
    spark.dataSource.register(MsgStoreSource)


class MsgStoreSource(DataSource):
    """Data source of ``spark.read.format("msgstore").load(PATH)``. :class:`msgstore_spark.options.ReadOptions` has its options.

    Spark does not tell a data source which columns a query needs. With ``.schema("id binary, offset bigint")``, bodies are not
    read. Spark has a call for filters, ``pushFilters``, which gives wrong rows: ADR 16 says how. A DataFrame lists its
    directories at its first query.
    """

    @classmethod
    def name(cls) -> str:
        return "msgstore"

    def schema(self) -> StructType:
        if _is_of_messages(given := self._given()):
            MessageOptions.of(given)  # a wrong option is an error now, not at the first query
            found = from_arrow_schema(MESSAGES)
            if self._is_created():
                found.fields[0].metadata = {_TABLE: json.dumps(given)}
            return found
        options = ReadOptions.of(given)
        found = from_arrow_schema(full_schema(options, options.find())[0])
        if self._is_created():
            found.fields[0].metadata = {_TABLE: json.dumps(given)}
        return found

    def _is_created(self) -> bool:
        """Return True for a ``CREATE TABLE`` statement, which has properties of the table among its options."""
        return {"provider", "owner"} <= set(self.options)

    def _given(self, schema: StructType | None = None) -> Mapping[str, str]:
        """Return the options of a query, or those of the ``CREATE TABLE`` statement of a catalog table.

        Such a statement passes the properties of the table, too. Spark passes nothing to queries of the table but its schema.
        So the options are saved in the metadata of the first column.
        """
        if self._is_created():
            named = {key.removeprefix(_OF_TABLE): value for key, value in self.options.items() if key.startswith(_OF_TABLE)}
            return named | {key: value for key, value in self.options.items() if key == "path"}
        if schema and not self.options and _TABLE in schema.fields[0].metadata:
            return cast("dict[str, str]", json.loads(schema.fields[0].metadata[_TABLE]))
        return self.options

    def reader(self, schema: StructType) -> DataSourceReader:
        if _is_of_messages(given := self._given(schema)):
            return MessageReader(MessageOptions.of(given), schema)
        options = ReadOptions.of(given)
        found = options.find()
        warn_of_unread(found)
        full, constants = full_schema(options, found)
        return SegmentReader(options, found, *columns(full, schema, options.hint()), constants)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a new store. In every mode, existing data at the destination is an error."""
        return StoreWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's name
        raise ConfigError(
            "msgstore: a stream cannot write a store. Write one for each batch, in a directory that exists: .writeStream"
            '.foreachBatch(lambda frame, number: frame.write.format("msgstore").mode("append").option("ifExists", "ignore")'
            '.save(f"{DIRECTORY}/{number}"))'
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        if _is_of_messages(given := self._given(schema)):
            return NoStream("msgstore: messages of a source are read with spark.read; there is no stream of them")
        options = ReadOptions.of(given)
        if options.relation != "records":
            return NoStream(f"msgstore: a stream has records only; read the relation {options.relation!r} with spark.read")
        if options.fail_fast:
            return NoStream(
                "msgstore: a stream has no mode FAILFAST: what is damage may be a write that goes on. A segment that cannot be "
                "read fails it in any case; see damage with the relation 'damage' of spark.read"
            )
        found = options.find()
        warn_of_unread(found)
        full, constants = full_schema(options, found)
        return SegmentStreamReader(options, *columns(full, schema, options.hint()), constants)


def _is_of_messages(options: Mapping[str, str]) -> bool:
    return any(key.lower() == "source" for key in options)


_OF_TABLE, _TABLE = "option.", "msgstore"
"""Prefix of the options of a ``CREATE TABLE`` statement; key of the metadata."""


_WITHOUT_BODY = {*RECORD.names, "modified"} - {"body"}


class SegmentReader(DataSourceReader):
    """Reader of one query. Created on the driver, and pickled to the executors with one partition per task."""

    def __init__(
        self,
        options: ReadOptions,
        found: JobInputs,
        schema: pa.Schema,
        asked: pa.Schema | None = None,
        constants: Collection[str] = (),
    ) -> None:
        self._options = options
        self._found = found
        self._schema = schema
        self._asked = asked or schema
        """The same columns as the query must get them."""
        self._constants = [name for name in constants if name in schema.names]
        """Names of the columns that are the same for all records of a segment."""
        self._bodies = options.relation != "records" or not _WITHOUT_BODY.issuperset(schema.names)

    def partitions(self) -> list[InputPartition]:
        tasks = self._options.group_into_tasks(self._found.inputs, bodies=self._bodies)
        partitions: list[InputPartition] = [SegmentPartition(task) for task in tasks]
        if self._options.relation == "damage" and self._found.damage:
            partitions.append(SegmentPartition((), (spans_batch(self._found.damage),)))
        return partitions or [SegmentPartition(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentPartition)
        with name_host():
            for found in partition.inputs:
                require_directory(found.path, is_read=self._options.relation == "records")  # nothing else would name it
            for batch in join_small(self._batches(partition)):
                yield batch.select(self._schema.names).rename_columns(self._asked.names).cast(self._asked)
        freeze_imports()

    def _batches(self, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
        yield from partition.rows
        if self._options.relation == "records":
            for found in partition.inputs:
                yield from record_batches(
                    found,
                    self._schema,
                    self._options.codec(),
                    only=self._options.where,
                    constants=constants_of(found, self._constants),
                    fail_fast=self._options.fail_fast,
                )
        elif self._options.relation == "damage":
            yield damage_batch(partition.inputs)
        else:
            changed = [constants_of(found, ["modified"])["modified"] for found in partition.inputs]
            yield segments_batch(partition.inputs).append_column("modified", pa.array(changed, MODIFIED))

    def __getstate__(self) -> dict[str, Any]:
        """Omit the list of all segments: a task receives its own partition."""
        return self.__dict__ | {"_found": JobInputs((), (), (), ())}
