"""Execution of tasks on executors: one partition per task, so that Spark schedules each independently."""

from __future__ import annotations

import gc
import os
import pickle
import pwd
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import InputPartition

from msgstore.contract import Columns, ConfigError, PluginError, StoreError, StoreIOError
from msgstore.jobs.columns.sums import fixed_width, int64
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.segment_check import SegmentRange

T = TypeVar("T")
R = TypeVar("R")
SegmentRows = tuple[Columns, Mapping[str, pa.Array], object]
"""Records of a segment, further columns of their rows, and a result for the whole segment, which is pickled."""
IS_RECORD = "result is null"
_OFFSET_BITS = 40
_MAX_SEGMENTS = 1 << 63 - _OFFSET_BITS
"""Rank and offset of a record are one integer of 63 bits. Segments have less than 1 TiB, as in :mod:`msgstore.locations`."""
_JOINED = 2**20
"""Size in bytes from which a batch is passed to Spark; smaller ones are joined."""
_SQL = {pa.int64(): "long", pa.binary(): "binary", pa.bool_(): "boolean"}


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


def map_tasks(
    spark: SparkSession, function: Callable[[int, T], Iterator[pa.RecordBatch]], tasks: Sequence[T], schema: pa.Schema
) -> DataFrame:
    """Call ``function(number, task)`` on an executor for each task, and return the rows of its batches. Works on Spark Connect.

    Tasks are pickled with absolute paths, because executors have other working directories. If Spark runs a task several
    times, the rows of one attempt are returned.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with name_host():
            for batch in batches:
                for number, task in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield from function(number, pickle.loads(task))
        freeze_imports()

    pickled = [(number, pickle.dumps(absolute(task))) for number, task in enumerate(tasks)]
    by_number = sf.broadcast(spark.createDataFrame(pickled, "id long, task binary"))
    columns = ", ".join(f"{field.name} {_SQL[field.type]}" for field in schema)
    return spark.range(0, len(tasks), 1, max(1, len(tasks))).join(by_number, "id").mapInArrow(run, columns)


def run_tasks(spark: SparkSession, function: Callable[[T], R], tasks: Iterable[T]) -> list[R]:
    """Call ``function`` on an executor for each task, and return the results in the order of the tasks."""
    schema = pa.schema({"number": pa.int64(), "result": pa.binary()})

    def run(number: int, task: T) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[number], [pickle.dumps(function(task))]], schema=schema)

    rows = map_tasks(spark, run, list(tasks), schema).collect()
    return [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.number)]


def read_segments(
    spark: SparkSession,
    read: Callable[[SegmentInput], SegmentRows],
    tasks: Sequence[tuple[SegmentInput, ...]],
    **columns: pa.DataType,
) -> DataFrame:
    """Call ``read`` on an executor for each segment, and return the rows (rank, offset, id, ``columns``, result).

    Each record has a row, without a result. Each segment has one more, with the pickled result and else nulls.
    """
    schema = pa.schema({"rank": pa.int64(), "offset": pa.int64(), "id": pa.binary(), **columns, "result": pa.binary()})

    def run(_: int, task: Iterable[SegmentInput]) -> Iterator[pa.RecordBatch]:
        for item in task:
            require_directory(item.path)
            records, more, result = read(item)
            if max(records.offsets, default=0) >> _OFFSET_BITS:
                raise StoreError(f"{item.path}: a record begins behind 1 TiB, where no segment of a store has one")
            if count := len(records):
                values = {
                    "rank": pa.repeat(pa.scalar(item.rank, pa.int64()), count),
                    "offset": int64(records.offsets),
                    "id": fixed_width(records.ids),
                    "result": pa.nulls(count, pa.binary()),
                    **more,
                }
                yield pa.record_batch([values[field.name].cast(field.type) for field in schema], schema=schema)
            yield pa.RecordBatch.from_pylist([{"rank": item.rank, "result": pickle.dumps(result)}], schema=schema)

    return map_tasks(spark, run, tasks, schema)


def segment_results(rows: DataFrame) -> dict[int, Any]:
    """Return the results of all segments by rank."""
    return {row.rank: pickle.loads(row.result) for row in rows.where("result is not null").collect()}


def first_copies(records: DataFrame, inputs: Iterable[SegmentInput], *columns: str, store: str = "") -> DataFrame:
    """Return (id, ``columns``) of the first copy of each id in ``inputs``, in each ``store`` if there is such a column.

    Rank and offset are compared as one integer: Spark aggregates numbers in a hash table, but a minimum of structs by sorting.
    Raises ConfigError for a rank that this integer has no room for; ``read_segments`` has compared the offsets.
    """
    for item in inputs:
        if item.rank >= _MAX_SEGMENTS:
            raise ConfigError(
                f"{item.path}: this job on Spark takes at most {_MAX_SEGMENTS:,} segments. Give it a part of them, or run it "
                "with local processes"
            )
    first = {"rank": sf.shiftright("place", _OFFSET_BITS), "offset": sf.col("place").bitwiseAND((1 << _OFFSET_BITS) - 1)}
    place = sf.shiftleft("rank", _OFFSET_BITS).bitwiseOR(sf.col("offset"))
    others = [sf.min_by(name, "place").alias(name) for name in columns if name not in first]
    keyed = records.withColumn("place", place).groupBy(*filter(None, [store]), "id")
    found = keyed.agg(sf.min("place").alias("place"), *others)
    return found.select("id", *(first[name].alias(name) if name in first else name for name in columns))


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: Spark takes as long for a batch of ten rows as for one of a thousand."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _JOINED:
            joined = pa.Table.from_batches(waiting).combine_chunks()
            waiting, size = [], 0
            yield from joined.to_batches()
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


@contextmanager
def on_disk(*frames: DataFrame | None) -> Iterator[None]:
    """Keep the rows of frames on the disks of the executors during the block. A frame comes after those that it is made of."""
    kept = [frame.persist(StorageLevel.DISK_ONLY) for frame in frames if frame is not None]
    try:
        yield
    finally:
        for frame in kept:
            frame.unpersist()


@contextmanager
def name_host() -> Iterator[None]:
    """Name this host, its Python and its user in errors that the driver would not have: a plugin that is missing, or a path
    that may not be written."""
    try:
        yield
    except StoreIOError as error:
        raise type(error)(f"{_here()}, user {_user()}: {error}") from error
    except PluginError as error:
        reason = re.sub(r" Did you mean '[^']*'\?", "", str(error)).rstrip(".")  # the driver has the plugin
        raise type(error)(f"{_here()}: {reason}. check_executors(spark) compares all executors with the driver.") from error


def _here() -> str:
    return f"on {socket.gethostname()} ({sys.executable})"


def _user() -> str:
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())


def require(path: str, *, is_read: bool = False) -> None:
    """Raise StoreError if this host does not have a path that the driver has, or with ``is_read`` may not read it."""
    try:
        if is_read:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        else:
            os.stat(path)  # noqa: PTH116 - a Path takes longer, and there may be 100,000 segments
    except OSError as error:
        reason = f"{path}: {error.strerror}. Executors need it under this path, and permission to read it"
        raise StoreError(f"{_here()}, user {_user()}: {reason}") from error


def require_directory(segment: str, *, is_read: bool = False) -> None:
    """Raise StoreError if this host does not have the directory of a segment: the rows of all its segments would be missing.

    A segment that was deleted since the driver listed it, as by a collection, is no error: others are in its directory. With
    ``is_read``, one that this host may not read is.
    """
    try:
        require(segment, is_read=is_read)
    except StoreError as error:
        directory, name = os.path.split(segment)
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(directory)  # noqa: PTH208
        if not isinstance(error.__cause__, FileNotFoundError) or not names or name in names:
            raise


def absolute(task: Any) -> Any:
    """Return the task with absolute paths of its inputs."""
    if isinstance(task, tuple):
        return tuple(map(absolute, task))
    if attrs.has(type(task)) and "path" in attrs.fields_dict(type(task)):
        return attrs.evolve(task, path=os.path.abspath(task.path))  # noqa: PTH100 - Path.resolve accesses the file system
    return task


@cache
def freeze_imports() -> None:
    """Exclude all current objects, such as imported modules, from garbage collection. Only the first call has an effect.

    PySpark runs a full collection after each task. With the objects of PySpark, pyarrow and the plugins, it takes tens of
    milliseconds, more than most tasks.
    """
    gc.freeze()
