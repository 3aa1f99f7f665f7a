"""Export on executors: each task writes its own files, and the driver publishes all of them together."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from msgstore.jobs.export import Exported, ExportJob, ExportReport, Task, export_task
from msgstore.jobs.export import export as export_with
from msgstore_spark.tasks import map_tasks


def export(spark: SparkSession, job: ExportJob) -> ExportReport:
    """Run the job and return its report."""

    def run(staging: str, tasks: Sequence[Task]) -> Iterator[Exported]:
        rows = map_tasks(spark, partial(_export, job=job, staging=staging), tasks, "task int, done binary").collect()
        return (pickle.loads(row.done) for row in sorted(rows, key=lambda row: row.task))

    return export_with(job, run, lambda _: None)


def _export(number: int, task: Task, job: ExportJob, staging: str) -> Iterator[pa.RecordBatch]:
    done = pickle.dumps(export_task(task, job, staging))
    yield pa.RecordBatch.from_pydict({"task": pa.array([number], pa.int32()), "done": pa.array([done], pa.binary())})
