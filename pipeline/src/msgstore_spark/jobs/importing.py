"""Import on executors: each reads files that all executors can access, and writes parts of the new store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from msgstore.jobs import importing
from msgstore.jobs.importing import ImportJob, ImportReport, Share
from msgstore.jobs.output.parts import Part
from msgstore_spark.tasks import map_tasks


def import_messages(spark: SparkSession, job: ImportJob) -> ImportReport:
    """Run the job and return its report.

    Spark returns the row of one attempt of each task. The commit deletes the files of all other attempts.
    """

    def run(write: Callable[[tuple[int, Share]], Part], shares: Iterable[tuple[int, Share]]) -> list[Part]:
        def work(_: int, share: tuple[int, Share]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(write(share))], pa.binary())], ["part"])

        parts = [pickle.loads(row.part) for row in map_tasks(spark, work, list(shares), "part binary").collect()]
        return sorted(parts, key=lambda part: part.task)

    return importing.import_messages(job, run)
