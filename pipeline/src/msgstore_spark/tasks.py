"""Tasks that Python cut, run by executors: one partition each, so that none waits for another's."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore_spark.settling import settle

T = TypeVar("T")


def map_tasks(
    spark: SparkSession, function: Callable[[int, T], Iterator[pa.RecordBatch]], tasks: Sequence[T], schema: str
) -> DataFrame:
    """``function(number, task)`` for each task, in an executor; the rows of its batches. Works through Spark Connect, too.

    Tasks are pickled, and each worker is told its own, with absolute paths: executors have working directories of their own.
    A task that Spark runs again gives its rows once.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, task in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from function(number, pickle.loads(task))
        settle()

    pickled = [(number, pickle.dumps(absolute(task))) for number, task in enumerate(tasks)]
    told = sf.broadcast(spark.createDataFrame(pickled, "id long, task binary"))
    return spark.range(0, len(tasks), 1, max(1, len(tasks))).join(told, "id").mapInArrow(run, schema)


def absolute(task: Any) -> Any:
    """A task, with the paths of its inputs as every working directory sees them."""
    if isinstance(task, tuple):
        return tuple(map(absolute, task))
    if attrs.has(type(task)) and "path" in attrs.fields_dict(type(task)):
        return attrs.evolve(task, path=os.path.abspath(task.path))  # noqa: PTH100 - without a look at the file system
    return task
