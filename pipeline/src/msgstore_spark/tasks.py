"""Execution of tasks on executors: one partition per task, so that Spark schedules each independently."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore_spark.worker_gc import freeze_imports

T = TypeVar("T")


def map_tasks(
    spark: SparkSession, function: Callable[[int, T], Iterator[pa.RecordBatch]], tasks: Sequence[T], schema: str
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
    return spark.range(0, len(tasks), 1, max(1, len(tasks))).join(by_number, "id").mapInArrow(run, schema)


def absolute(task: Any) -> Any:
    """Return the task with absolute paths of its inputs."""
    if isinstance(task, tuple):
        return tuple(map(absolute, task))
    if attrs.has(type(task)) and "path" in attrs.fields_dict(type(task)):
        return attrs.evolve(task, path=os.path.abspath(task.path))  # noqa: PTH100 - Path.resolve accesses the file system
    return task
