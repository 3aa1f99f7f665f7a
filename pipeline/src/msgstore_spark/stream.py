"""Stream reader of ``spark.readStream.format("msgstore")``: records of stores that are being written, each at least once.

An offset has, for each file, the range that was read last (:mod:`msgstore.jobs.reading.tailing`). A batch that Spark repeats
after a failure reads the same ranges. It reads nothing of a file that was rewritten in the meantime; the next batch reads that
file from its beginning. Records that a collection moves are read again; ``dropDuplicates(["id"])`` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from msgstore.jobs.columns.batches import record_batches
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.segment_check import SegmentRange
from msgstore.jobs.reading.tailing import UNSETTLED, TailPosition, poll
from msgstore.jobs.workers import open_codec
from msgstore_spark.options import ReadOptions

Offset = dict[str, dict[str, int]]


class SegmentRangePartition(InputPartition):
    """Input of one task of a micro-batch."""

    def __init__(self, parts: tuple[tuple[SegmentInput, SegmentRange], ...]) -> None:
        super().__init__(None)
        self.parts = parts


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader. The driver finds new records by scanning the new bytes of changed files."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
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
        self._target = self._next_offset({}, ReadAllAvailable())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch; ``start`` itself if there is nothing new."""
        return self._next_offset(start, limit)

    def _next_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch. It has at least one file, so the first may exceed a limit in bytes."""
        inputs = [found for found in self._options.find().inputs if self._target is None or found.path in self._target]
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        remaining = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        changed: Offset = {}
        for found, progress in poll(inputs, _parse(start)):
            if self._target is not None:
                progress = _limit_to(progress, _parse(self._target)[found.path].stretch)
                if progress.stretch.begin >= progress.stretch.end:
                    continue
            if remaining is not None:
                if changed and progress.stretch.end - progress.stretch.begin > remaining:
                    break
                remaining -= progress.stretch.end - progress.stretch.begin
            changed[found.path] = _as_offset(progress)
            if len(changed) == files:
                break
        if not changed:
            return start
        existing = {found.path for found in inputs}
        return {path: known for path, known in start.items() if self._target or path in existing} | changed

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        changed = {path: progress.stretch for path, progress in _parse(end).items() if end[path] != start.get(path)}
        # Grouped by the sizes of the ranges: the sizes of whole files do not matter here.
        inputs = [
            attrs.evolve(found, size=changed[found.path].end - changed[found.path].begin)
            for found in self._options.find().inputs
            if found.path in changed
        ]
        tasks = self._options.pack(inputs, bodies=True)
        return [SegmentRangePartition(tuple((found, changed[found.path]) for found in task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentRangePartition)
        codec = open_codec(self._options.body) if self._options.body else None
        for found, stretch in partition.parts:
            yield from record_batches(found, self._schema, codec, stretch=stretch)


def _limit_to(progress: TailPosition, target: SegmentRange) -> TailPosition:
    """Return ``progress`` limited to the end of ``target``.

    A file that was rewritten after ``target`` was taken is not read in this query; the next query reads all of it.
    """
    if progress.stretch.end <= target.end:
        return progress
    return attrs.evolve(progress, stretch=SegmentRange(progress.stretch.begin, target.end, target.crc32), mtime_ns=UNSETTLED)


def _as_offset(progress: TailPosition) -> dict[str, int]:
    return {**attrs.asdict(progress.stretch), "size": progress.size, "mtime_ns": progress.mtime_ns}


def _parse(offset: Mapping[str, Mapping[str, int]]) -> dict[str, TailPosition]:
    return {
        path: TailPosition(SegmentRange(one["begin"], one["end"], one["crc32"]), one["size"], one["mtime_ns"])
        for path, one in offset.items()
    }
