"""Registration of the job runner ``spark``. PySpark is imported when the runner is created."""

from __future__ import annotations

import attrs

from msgstore import hookimpl
from msgstore.contract import JobRunnerDescriptor


@attrs.frozen
class SparkOptions:
    """Options of the job runner ``spark``."""

    master: str | None = None
    """URL of the master, such as ``local[4]``, ``spark://host:7077`` or ``sc://host:15002``. None: the active session, or all
    CPUs of this machine."""


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
