"""Registration of the job runner ``spark``. PySpark is imported when the runner is created."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import JobRunnerDescriptor
from msgstore_spark.runner_options import SparkOptions


@hookimpl
def msgstore_job_runners() -> list[JobRunnerDescriptor]:
    return [
        JobRunnerDescriptor(
            name="spark",
            contract=(1, 0),
            factory="msgstore_spark.runner:SparkRunner",
            options=SparkOptions,
            min_input_bytes=10 * 2**30,
            summary="Apache Spark: the CPUs of this machine, or of a cluster",
        ),
    ]
