"""``spark.readStream.format("msgstore")``: the records of stores that are being written, at least once each.

An offset names, for each file, the stretch that was read last (:mod:`msgstore.jobs.reading.tailing`). A batch that is run
again after a failure reads the same ones; of a file that was changed since it reads nothing, and the next batch reads that file
from its beginning. Records that a collector moves come again: ``dropDuplicates(["id"])`` where that matters.
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

from msgstore.jobs.columns.batches import Wanted, record_batches
from msgstore.jobs.columns.codecs import open_codec
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.segment_check import SegmentRange
from msgstore.jobs.reading.tailing import UNSETTLED, Follower, Progress
from msgstore_spark.options import ReadOptions

Offset = dict[str, dict[str, int]]


class PartShare(InputPartition):
    """What one task of a micro-batch reads."""

    def __init__(self, parts: tuple[tuple[SegmentInput, SegmentRange], ...]) -> None:
        super().__init__(None)
        self.parts = parts


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Looks for new records on the driver, which scans what is new in the files that have changed."""

    def __init__(self, asked: ReadOptions, schema: pa.Schema) -> None:
        self._asked = asked
        self._schema = schema
        self._follower = Follower()
        self._target: Offset | None = None
        """What was there when a query began that is to read no more."""

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's names
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._asked.max_files:
            return ReadMaxFiles(self._asked.max_files)
        if self._asked.max_bytes:
            return ReadMaxBytes(self._asked.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._read_on({}, ReadAllAvailable())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """``start`` itself if there is nothing new."""
        return self._read_on(start, limit)

    def _read_on(self, start: Offset, limit: ReadLimit) -> Offset:
        """At least one file; whole files only, so that a limit of bytes may be passed by one."""
        inputs = [found for found in self._asked.find().inputs if self._target is None or found.path in self._target]
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        news: Offset = {}
        for found, progress in self._follower.news(inputs, _parsed(start)):
            if self._target is not None:
                progress = _until(progress, _parsed(self._target)[found.path].stretch)
                if progress.stretch.begin >= progress.stretch.end:
                    continue
            if room is not None:
                if news and progress.stretch.end - progress.stretch.begin > room:
                    break
                room -= progress.stretch.end - progress.stretch.begin
            news[found.path] = _as_offset(progress)
            if len(news) == files:
                break
        if not news:
            return start
        there = {found.path for found in inputs}
        return {path: known for path, known in start.items() if self._target or path in there} | news

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        changed = {path: progress.stretch for path, progress in _parsed(end).items() if end[path] != start.get(path)}
        # Packed by what is read of each: the sizes of files say nothing about a stretch.
        inputs = [
            attrs.evolve(found, size=changed[found.path].end - changed[found.path].begin)
            for found in self._asked.find().inputs
            if found.path in changed
        ]
        tasks = self._asked.pack(inputs, bodies=True)
        return [PartShare(tuple((found, changed[found.path]) for found in task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PartShare)
        codec = open_codec(self._asked.body) if self._asked.body else None
        for found, stretch in partition.parts:
            yield from record_batches(found, self._schema, Wanted(tuple(self._schema.names)), codec, stretch)


def _until(progress: Progress, target: SegmentRange) -> Progress:
    """No further than ``target``; of a file that was rewritten since, nothing then, and the next run reads all of it."""
    if progress.stretch.end <= target.end:
        return progress
    return attrs.evolve(progress, stretch=SegmentRange(progress.stretch.begin, target.end, target.crc32), mtime_ns=UNSETTLED)


def _as_offset(progress: Progress) -> dict[str, int]:
    return {**attrs.asdict(progress.stretch), "size": progress.size, "mtime_ns": progress.mtime_ns}


def _parsed(offset: Mapping[str, Mapping[str, int]]) -> dict[str, Progress]:
    return {
        path: Progress(SegmentRange(one["begin"], one["end"], one["crc32"]), one["size"], one["mtime_ns"])
        for path, one in offset.items()
    }
