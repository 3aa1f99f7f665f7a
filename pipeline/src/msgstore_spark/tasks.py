"""Execution of tasks on executors: one partition per task, so that Spark schedules each independently."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

T = TypeVar("T")
R = TypeVar("R")

_SQL = {pa.int64(): "long", pa.binary(): "binary", pa.bool_(): "boolean"}


def map_tasks(
    spark: SparkSession, function: Callable[[int, T], Iterator[pa.RecordBatch]], tasks: Sequence[T], schema: pa.Schema
) -> DataFrame:
    """Call ``function(number, task)`` on an executor for each task, and return the rows of its batches. Works on Spark Connect.

    Tasks are pickled with absolute paths, because executors have other working directories. If Spark runs a task several
    times, the rows of one attempt are returned.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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


def segment_schema(**columns: pa.DataType) -> pa.Schema:
    """Return the schema of :func:`segment_rows`; ``columns`` are those that only rows of records have."""
    return pa.schema({"rank": pa.int64(), **columns, "result": pa.binary()})


def segment_rows(schema: pa.Schema, rank: int, columns: Mapping[str, pa.Array], result: object) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of a segment, and then one for the segment, with its pickled result and else nulls.

    ``columns`` has the values of the records. Their column ``result`` is null.
    """
    count = len(columns["id"])
    shared = {"rank": pa.repeat(pa.scalar(rank, pa.int64()), count), "result": pa.nulls(count, pa.binary())}
    if count:
        values = {**shared, **columns}
        yield pa.record_batch([values[field.name].cast(field.type) for field in schema], schema=schema)
    yield pa.RecordBatch.from_pylist([{"rank": rank, "result": pickle.dumps(result)}], schema=schema)


def segment_results(rows: DataFrame) -> dict[int, Any]:
    """Return the results of all segments by rank."""
    return {row.rank: pickle.loads(row.result) for row in rows.where("result is not null").collect()}


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
