"""Writer of ``df.write.format("msgstore")``: a new store with the rows of a DataFrame.

    df.select("id", "body").write.format("msgstore").mode("append").option("format", "v2").save("rescued")

Columns: ``id`` (16 bytes, or text of 32 hexadecimal digits), ``body`` (stored body), and optionally ``references``. Other
columns are refused, unless ``ignoreOthers`` is true. Rows with the same id and body become one message: its references are the
sum of the column, or 1. Two bodies of one id fail the write.

The store is always a new one. Spark has the modes ``append`` and ``overwrite`` for sources like this. In both modes, the
destination must not exist or must be an empty directory. Nothing is ever overwritten. With ``ifExists`` set to ``ignore``,
nothing is written if the destination exists.

The store is built in a staging directory next to its destination, in a file system that the driver and all executors share.
One rename publishes it after everything is on disk. The commit deletes the files of lost and killed tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError, PluginError, StoreError
from msgstore.jobs.columns.schemas import Messages, check_columns, messages_of
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import PartWriter, StorePart
from msgstore.jobs.output.staging_directory import is_occupied
from msgstore.scan.formats import NEW_STORE
from msgstore_spark.options import WriteOptions
from msgstore_spark.tasks import name_host


def _messages_of(batch: pa.RecordBatch, where: str, row: int) -> Messages:
    try:
        return messages_of(batch, where, row)
    except StoreError as error:
        if not str(error).endswith(" id is null"):
            raise
        raise StoreError(
            f"{error}. Messages of a source may have no id: use 'msgstore convert SRC DEST --sink store', or make ids, as in "
            "unhex(md5(concat_ws('/', queue, position)))"
        ) from error


@contextmanager
def _name_options() -> Iterator[None]:
    """Name options of the writer in errors of core, which has the keys of a configuration."""
    try:
        yield
    except (ConfigError, PluginError) as error:
        text = re.sub(f"^{NEW_STORE} format: (?=.*the record type)", "option 'records': ", str(error))
        raise type(error)(re.sub(rf"^{NEW_STORE} (\w+)", r"option '\1'", text)) from error


@dataclass
class StoreCommitMessage(WriterCommitMessage):
    """Result of one task."""

    part: StorePart | None
    """None: the destination existed."""


class StoreWriter(DataSourceArrowWriter):
    """Writer of a new store.

    Spark creates it in a Python process next to the driver, pickles it to the executors, and commits or aborts it in another
    Python process. The job is therefore handed over to the common parent of both, which is a process of Spark.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Begin the job. Raises ConfigError, PluginError, StoreError, StoreLocked or StoreIOError."""
        given = WriteOptions.of(options)
        self._target = given.target
        self._columns = check_columns(
            to_arrow_schema(schema, timezone="UTC"),  # it needs one for any column of times, and no such column is read
            self._target.path,
            ignore_others=given.ignore_others,
            option="the option ignoreOthers",
        )
        self._staging: str | None = None
        """None: nothing is written."""
        if is_occupied(self._target.destination):
            if given.ignore_existing:
                return
            raise StoreError(
                f"{self._target.path}: is there already, and is not an empty directory; choose a new name. The option "
                "ifExists=ignore leaves it as it is, without an error"
            )
        with _name_options(), StoreStaging.begin(self._target) as staging:
            self._staging = staging.path
            staging.hand_over(os.getppid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoreCommitMessage:
        """Write the rows of one attempt of one task. Called on an executor."""
        if self._staging is None:
            return StoreCommitMessage(None)
        context = TaskContext.get()
        assert context is not None
        where = f"{self._target.path}: partition {context.partitionId()}"
        row = 0
        with name_host(), _name_options(), PartWriter(self._target, self._staging, context.partitionId()) as part:
            for batch in iterator:
                part.add(*_messages_of(batch.select(self._columns), where, row), where=where, check=True)
                row += batch.num_rows
            return StoreCommitMessage(part.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._staging is None:
            return
        parts = [message.part for message in messages if isinstance(message, StoreCommitMessage) and message.part]
        with StoreStaging.join(self._target, self._staging) as staging:
            if len(parts) != len(messages):
                missing = len(messages) - len(parts)
                raise StoreError(f"{self._target.path}: {missing} tasks returned no result. Run the job again")
            staging.commit(parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._staging is not None:
            StoreStaging.join(self._target, self._staging).abandon()
