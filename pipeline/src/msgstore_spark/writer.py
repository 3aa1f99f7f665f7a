"""Writer of ``df.write.format("msgstore")``: a new store with the rows of a DataFrame.

    df.select("id", "body").write.format("msgstore").mode("append").option("format", "v2").save("rescued")

Columns: ``id`` (16 bytes, or text of 32 hexadecimal digits), ``body`` (stored body), and optionally ``references`` (default:
1). Other columns are refused, unless ``ignoreOthers`` is true. Rows with the same id and body become one message, and their
references are added. Two bodies of one id fail the write.

The store is always a new one. Spark has the modes ``append`` and ``overwrite`` for sources like this. In both modes, the
destination must not exist or must be an empty directory. Nothing is ever overwritten.

The store is built in a staging directory next to its destination, in a file system that the driver and all executors share.
One rename publishes it after everything is on disk. The commit deletes the files of lost and killed tasks.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError, StoreError
from msgstore.jobs.columns.messages import check_columns, messages_of
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part, PartWriter, Target
from msgstore.units import parse_size

OPTIONS = {
    "path": "directory of the new store",
    "index": "its index",
    "format": "the format of its segments",
    "record": "the record type of its messages",
    "records": "the type bytes of record types: audit=200,other=201",
    "body": "the codec that it remembers; bodies are stored unchanged, and must be valid for it",
    "fileSizeLimit": "size at which a segment is sealed: bytes, or text such as 16MiB",
    "ignoreOthers": "true: other columns are ignored",
}


@dataclass
class StoreCommitMessage(WriterCommitMessage):
    """Result of one task."""

    part: Part


class StoreWriter(DataSourceArrowWriter):
    """Writer of a new store.

    Spark creates it in a Python process next to the driver, pickles it to the executors, and commits or aborts it in another
    Python process. The job is therefore handed over to the common parent of both, which is a process of Spark.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Begin the job. Raises ConfigError, PluginError, StoreError, StoreLocked or StoreIOError."""
        self._ignore = _flag(options, "ignoreOthers")
        self._target = target_of(options)
        self._columns = check_columns(
            to_arrow_schema(schema), self._target.path, ignore_others=self._ignore, option="the option ignoreOthers"
        )
        with Staging.begin(self._target) as staging:
            self._staging = staging.path
            staging.hand_over(os.getppid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoreCommitMessage:
        """Write the rows of one attempt of one task. Called on an executor."""
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        where = f"{self._target.path}: partition {task}"
        row = 0
        with PartWriter(self._target, self._staging, task) as part:
            for batch in iterator:
                chosen = batch.select(self._columns)
                ids, bodies, references = messages_of(chosen, where, row)
                part.add(ids, bodies, references, where=where, check=True)
                row += batch.num_rows
            return StoreCommitMessage(part.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, StoreCommitMessage)]
        if len(parts) != len(messages):
            self.abort(messages)
            raise StoreError(f"{self._target.path}: {len(messages) - len(parts)} tasks returned no result. Run the job again")
        Staging.join(self._target, self._staging).commit(parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        Staging.join(self._target, self._staging).abandon()


def target_of(options: Mapping[str, str]) -> Target:
    """Return the destination that the options describe. Raises ConfigError for unknown or invalid options."""
    known = {name.lower(): name for name in OPTIONS}
    for name in options:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else f"; there are: {', '.join(OPTIONS)}"
            raise ConfigError(f"msgstore: there is no option {name!r} for writing{hint}")
    given = {known[name.lower()]: value for name, value in options.items()}
    if not given.get("path"):
        raise ConfigError('msgstore: the destination is missing: write .save("DIRECTORY")')
    target = Target(_local(given["path"]))
    chosen: dict[str, Any] = {name: given[name] for name in ("index", "format", "record", "body") if name in given}
    if "records" in given:
        target = attrs.evolve(target, records=_bindings(given["records"]))
    if "fileSizeLimit" in given:
        target = attrs.evolve(target, file_size_limit=_size(given["fileSizeLimit"]))
    return attrs.evolve(target, **chosen)


def _local(path: str) -> str:
    """Return the path of a ``file:`` URL, or ``path`` itself. Raises ConfigError for URLs of Hadoop's file systems."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return unquote(parts.path)
    if "://" in path:
        raise ConfigError(
            f"{path}: a store cannot be written to a URL. Use a directory that the driver and all executors have at one path"
        )
    return path


def _bindings(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for pair in text.split(","):
        name, _, byte = pair.partition("=")
        if not (name.strip() and byte.strip().isdecimal()):
            raise ConfigError(
                f"msgstore: records = {text!r} is not a list of record types with type bytes; write such as audit=200,other=201"
            )
        found.append((name.strip(), int(byte)))
    return tuple(found)


def _size(text: str) -> int:
    try:
        return parse_size(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise ConfigError(f"msgstore: fileSizeLimit: {error}") from error


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = next((value for key, value in options.items() if key.lower() == name.lower()), "false")
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"msgstore: {name} = {value!r} is neither true nor false")
    return value.lower() == "true"
