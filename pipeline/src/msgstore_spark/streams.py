"""Streams of ``spark.readStream.format("msgstore")``: records of stores that are being written."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from msgstore.contract import ConfigError
from msgstore.jobs.columns.batches import record_batches
from msgstore.jobs.reading.segment_check import UNSETTLED, TailPosition, poll
from msgstore_spark.options import ReadOptions
from msgstore_spark.schemas import constants_of
from msgstore_spark.tasks import SegmentPartition, name_host, require_directory

Offset = dict[str, dict[str, int]]


class NoStream(DataSourceStreamReader):
    """Stream reader that raises ConfigError at the start of a query.

    An error while PySpark makes a reader is followed by an UnboundLocalError of PySpark, which hides it.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's name
        raise ConfigError(self._reason)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - PySpark's name
        raise ConfigError(self._reason)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise ConfigError(self._reason)


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader: records of stores that are being written, each at least once.

    The driver finds new records by scanning the new bytes of changed files. An offset has, for each file, the range that was
    read last (``TailPosition``). A batch that Spark repeats after a failure reads the same ranges. It reads nothing of a file
    that was rewritten in the meantime; the next batch reads that file from its beginning. Records that a collection moves are
    read again; ``dropDuplicates(["id"])`` removes them.
    """

    def __init__(
        self, options: ReadOptions, schema: pa.Schema, asked: pa.Schema | None = None, constants: Collection[str] = ()
    ) -> None:
        self._options = options
        self._schema = schema
        self._asked = asked or schema
        self._constants = [name for name in constants if name in schema.names]
        self._seen: dict[str, tuple[int, int]] = {}
        """Files without new records, as of ``poll``."""
        self._target: Offset | None = None
        """End of a query with ``Trigger.AvailableNow``: the records that existed when it started. None for other queries."""

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        if self._options.max_files:
            return ReadMaxFiles(self._options.max_files)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        self._target = self.latestOffset({}, ReadAllAvailable())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - PySpark's name
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
        for path in changed.keys() - {found.path for found in inputs}:
            require_directory(path)  # else it would be committed as read
        tasks = self._options.group_into_tasks(inputs)
        return [SegmentPartition(task, stretches=tuple(changed[found.path] for found in task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentPartition)
        with name_host():
            codec = self._options.codec()
            for found, stretch in zip(partition.inputs, partition.stretches, strict=True):
                require_directory(found.path, is_read=True)
                for batch in record_batches(
                    found,
                    self._schema,
                    codec,
                    only=self._options.where,
                    stretch=stretch,
                    constants=constants_of(found, self._constants),
                ):
                    yield batch.rename_columns(self._asked.names).cast(self._asked)


def _limit_to(position: TailPosition, target: TailPosition) -> TailPosition:
    """Return ``position`` limited to the end of ``target``.

    A file that was rewritten after ``target`` was taken is not read in this query; the next query reads all of it.
    """
    if position.end <= target.end:
        return position
    return attrs.evolve(position, end=target.end, crc32=target.crc32, mtime_ns=UNSETTLED)
