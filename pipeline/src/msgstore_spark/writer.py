"""``df.write.format("msgstore")``: a fresh store of a DataFrame's rows.

    df.select("id", "body").write.format("msgstore").mode("append").option("format", "v2").save("rescued")

Columns: ``id`` (16 bytes, or text of 32 hexadecimal digits), ``body`` (as it is stored), and perhaps ``references`` (without it
each message has one). Others are refused, unless ``ignoreOthers`` is true. A row that comes twice is one message, whose
references are added up; an id with two bodies fails the write.

The store is always a fresh one. Spark offers the modes ``append`` and ``overwrite`` to sources like this; here both make a
store where there is nothing (or an empty directory), and refuse where there is something. Nothing is ever overwritten.

It is built beside its destination, in the file system that the driver and all executors share, and appears in one rename when
everything is on disk. What a lost or killed task has written is not taken, and deleted at the end.
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
from msgstore.units import parse_size
from msgstore.jobs.columns.rows import check_columns, messages_of
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part, PartWriter, Target, check_bodies

OPTIONS = {
    "path": "where the store is to be",
    "index": "its index",
    "format": "the format of its segments",
    "record": "the record type of its messages",
    "records": "the type bytes of record types: audit=200,other=201",
    "body": "the codec that it remembers; bodies are stored as they come, and must be valid for it",
    "fileSizeLimit": "where segments are rolled: bytes, or text such as 16MiB",
    "ignoreOthers": "true: other columns are left out",
}


@dataclass
class Written(WriterCommitMessage):
    """Of one task."""

    part: Part


class StoreWriter(DataSourceArrowWriter):
    """What ``DataSource.writer`` returns. Made by one process of Python beside the driver, pickled to the executors, and
    committed or aborted by another one: the job belongs to the process that they have in common, which is Spark's."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Begins the job. Raises ConfigError, PluginError, StoreError, StoreLocked, StoreIOError."""
        self._ignore = _flag(options, "ignoreOthers")
        self._target = target_of(options)
        self._columns = check_columns(
            to_arrow_schema(schema), self._target.path, ignore_others=self._ignore, option="the option ignoreOthers"
        )
        with Staging.begin(self._target) as staging:
            self._staging = staging.path
            staging.hand_over(os.getppid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One attempt of one task, in an executor."""
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        where = f"{self._target.path}: partition {task}"
        row = 0
        with PartWriter(self._target, self._staging, task) as part:
            for batch in iterator:
                chosen = batch.select(self._columns)
                ids, bodies, references = messages_of(chosen, where, row)
                check_bodies(self._target, ids, bodies, where)
                part.add(ids, bodies, references, where=where)
                row += batch.num_rows
            return Written(part.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, Written)]
        if len(parts) != len(messages):
            self.abort(messages)
            raise StoreError(
                f"{self._target.path}: {len(messages) - len(parts)} tasks did not say what they wrote; run it again"
            )
        Staging.join(self._target, self._staging).commit(parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        Staging.join(self._target, self._staging).abandon()


def target_of(options: Mapping[str, str]) -> Target:
    """Raises ConfigError for options that are none, or that make no sense."""
    known = {name.lower(): name for name in OPTIONS}
    for name in options:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else f"; there are: {', '.join(OPTIONS)}"
            raise ConfigError(f"msgstore: there is no option {name!r} for writing{hint}")
    given = {known[name.lower()]: value for name, value in options.items()}
    if not given.get("path"):
        raise ConfigError('msgstore: say where the store is to be: .save("directory")')
    target = Target(_local(given["path"]))
    chosen: dict[str, Any] = {name: given[name] for name in ("index", "format", "record", "body") if name in given}
    if "records" in given:
        target = attrs.evolve(target, records=_bindings(given["records"]))
    if "fileSizeLimit" in given:
        target = attrs.evolve(target, file_size_limit=_size(given["fileSizeLimit"]))
    return attrs.evolve(target, **chosen)


def _local(path: str) -> str:
    """A path of the file system; Hadoop's file systems are others."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return unquote(parts.path)
    if "://" in path:
        raise ConfigError(
            f"{path}: a store is made in a file system that the driver and all executors see under the same path, not at a URL"
        )
    return path


def _bindings(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for pair in text.split(","):
        name, _, byte = pair.partition("=")
        if not (name.strip() and byte.strip().isdecimal()):
            raise ConfigError(f"msgstore: records = {text!r} is not record types with type bytes, as in audit=200,other=201")
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
