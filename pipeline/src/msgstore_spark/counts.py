"""Count files as DataFrames. :mod:`msgstore.jobs.counts` documents their contents."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.contract import ConfigError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.jobs.counts import find_shares, read_share
from msgstore.jobs.reading.shares import Share
from msgstore_spark.tasks import map_tasks


def read_counts(spark: SparkSession, path: str) -> DataFrame:
    """Return (id binary, count long) of each id with at least one reference. Executors read the file; rows of one id are added.

    Raises ConfigError if an id has more references than a store can count. An invalid line or row fails the task.
    """
    read = map_tasks(spark, _read, find_shares([path]), pa.schema({"id": pa.binary(), "count": pa.int64()}))
    sums = read.groupBy("id").agg(sf.sum("count").alias("count"))
    many = sums.where(f"count > {MAX_REFERENCES}").head()
    if many is not None:
        raise ConfigError(
            f"{path}: refcounts: {bytes(many.id).hex()} has {many['count']} references; at most {MAX_REFERENCES} are counted"
        )
    return sums.where("count > 0")


def _read(_: int, share: Share) -> Iterator[pa.RecordBatch]:
    for batch in read_share(share):
        yield pa.RecordBatch.from_arrays([pc.cast(batch.column(0), pa.binary()), batch.column(1)], ["id", "count"])
