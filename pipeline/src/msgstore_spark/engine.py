"""The engine ``spark``: jobs of core, carried out by executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from msgstore.jobs.diff import DiffJob, DiffReport
from msgstore.jobs.export import ExportJob, ExportReport
from msgstore.jobs.importing import ImportJob, ImportReport
from msgstore.jobs.inventory import InventoryJob
from msgstore.jobs.inventory_report import InventoryReport
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.reports import SalvageReport
from msgstore.jobs.runner import Progress
from msgstore.jobs.salvage import SalvageJob
from msgstore_spark.engine_options import SparkOptions
from msgstore_spark.failures import our_errors
from msgstore_spark.fingerprint import check_executors
from msgstore_spark.jobs.diff import diff
from msgstore_spark.jobs.export import export
from msgstore_spark.jobs.importing import import_messages
from msgstore_spark.jobs.inventory import inventory
from msgstore_spark.jobs.reconcile import reconcile
from msgstore_spark.jobs.salvage import salvage
from msgstore_spark.progress import watched
from msgstore_spark.session import session

DIRECTORIES = 100
"""Of so many, and of so many on either side of a job that has two, it is asked whether executors see them."""


class _Input(Protocol):
    @property
    def path(self) -> str | Path: ...


class SparkRunner:
    """A :class:`msgstore.jobs.runner.JobRunner`. The session that it began goes on, so that another job finds one."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options

    def salvage(self, job: SalvageJob, progress: Progress | None = None) -> SalvageReport:
        with self._at_work(progress, job.found.inputs) as spark:
            return salvage(spark, job)

    def reconcile(self, job: ReconcileJob, progress: Progress | None = None) -> ReconcileReport:
        with self._at_work(progress, job.found.inputs, job.shares) as spark:
            return reconcile(spark, job)

    def inventory(self, job: InventoryJob, progress: Progress | None = None) -> InventoryReport:
        with self._at_work(progress, job.found.inputs) as spark:
            return inventory(spark, job)

    def diff(self, job: DiffJob, progress: Progress | None = None) -> DiffReport:
        with self._at_work(progress, job.found_a.inputs, job.found_b.inputs) as spark:
            return diff(spark, job)

    def export(self, job: ExportJob, progress: Progress | None = None) -> ExportReport:
        with self._at_work(progress, job.found.inputs) as spark:
            return export(spark, job)

    def import_messages(self, job: ImportJob, progress: Progress | None = None) -> ImportReport:
        with self._at_work(progress, job.shares) as spark:
            return import_messages(spark, job)

    @contextmanager
    def _at_work(self, progress: Progress | None, *inputs: Iterable[_Input]) -> Iterator[SparkSession]:
        """The session, once its executors have shown that they have the plugins that this process has, and see the inputs."""
        spark = session(self._options.master)
        with our_errors():
            check_executors(spark, [path for group in inputs for path in _one_of_each_directory(group)])
            with watched(spark, progress):
                yield spark


def _one_of_each_directory(inputs: Iterable[_Input]) -> list[Path]:
    """Of so many directories that it shows whether executors see what this process sees."""
    first: dict[Path, Path] = {}
    for path in (Path(found.path) for found in inputs):
        first.setdefault(path.parent, path)
        if len(first) == DIRECTORIES:
            break
    return list(first.values())
