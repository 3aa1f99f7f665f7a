"""Job runner ``spark``: executes core's jobs on Spark's executors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore.contract import ConfigError
from msgstore.jobs.diff import DiffJob, DiffReport
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.inventory import InventoryJob, InventoryReport
from msgstore.jobs.messages.conversion_plan import ConvertJob
from msgstore.jobs.messages.conversion_report import ConvertReport
from msgstore.jobs.messages.convert import Refused
from msgstore.jobs.messages.parallel import convert_in_parts, plan_parts
from msgstore.jobs.messages.sources import SourceSpec
from msgstore.jobs.reading.splits import FileSplit
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.runner import JobRunner
from msgstore.jobs.salvage import SalvageJob, SalvageReport
from msgstore.jobs.tasks import ProgressCallback, ProgressMeter
from msgstore.jobs.workers import DISABLED, disabled_plugins
from msgstore_spark import executors
from msgstore_spark.errors import task_errors
from msgstore_spark.jobs import diff, inventory, reconcile
from msgstore_spark.plugin import SparkOptions
from msgstore_spark.salvage import salvage
from msgstore_spark.sessions import open_session
from msgstore_spark.tasks import absolute, run_tasks

MAX_CHECKED_DIRECTORIES = 100
"""Directories per group of inputs for which executors are asked if they can read them."""
_POLL_SECONDS = 0.2


class SparkRunner(JobRunner):
    """Runner of jobs on Spark. Its session stays active, so that the next job reuses it."""

    progress_unit = "tasks"

    def __init__(self, options: SparkOptions) -> None:
        self._options = options

    def salvage(self, job: SalvageJob, progress: ProgressCallback | None = None) -> SalvageReport:
        with self._checked_session(progress, job.found.inputs, destination=job.target.path) as spark:
            return salvage(spark, job)

    def reconcile(self, job: ReconcileJob, progress: ProgressCallback | None = None) -> ReconcileReport:
        with self._checked_session(progress, job.found.inputs, job.splits) as spark:
            return reconcile(spark, job)

    def inventory(self, job: InventoryJob, progress: ProgressCallback | None = None) -> InventoryReport:
        with self._checked_session(progress, job.found.inputs) as spark:
            return inventory(spark, job)

    def diff(self, job: DiffJob, progress: ProgressCallback | None = None) -> DiffReport:
        with self._checked_session(progress, job.found_a.inputs, job.found_b.inputs) as spark:
            return diff(spark, job)

    def convert(
        self, job: ConvertJob, progress: ProgressCallback | None = None, on_refused: Refused | None = None
    ) -> ConvertReport:
        report, parts = plan_parts(job)
        with self._checked_session(progress, [job.source], destination=job.destination) as spark:
            return convert_in_parts(_absolute(job), report, parts, partial(run_tasks, spark), ProgressMeter(0), on_refused)

    @contextmanager
    def _checked_session(
        self,
        progress: ProgressCallback | None,
        *inputs: Iterable[SegmentInput | FileSplit | SourceSpec],
        destination: str | None = None,
    ) -> Iterator[SparkSession]:
        """Yield the session, after a check that its executors have the driver's plugins, can read the inputs, one of each
        directory, and see the directory that the destination will be in."""
        spark = open_session(self._options.master)
        _send_disabled(spark)
        paths = [] if destination is None else [str(Path(destination).absolute().parent)]
        for group in inputs:
            paths += islice({os.path.dirname(item.path): item.path for item in group}.values(), MAX_CHECKED_DIRECTORIES)  # noqa: PTH120 - many
        with task_errors():
            executors.check_executors(spark, paths)
            with watch(spark, progress):
                yield spark


def _absolute(job: ConvertJob) -> ConvertJob:
    """Return the job with absolute paths, because executors have other working directories. The report has those as given."""
    here = Path.cwd()
    source = attrs.evolve(job.source.source, base=here / job.source.source.base)
    sink = attrs.evolve(job.sink, base=here / job.sink.base)
    spec = absolute(attrs.evolve(job.source, source=source))
    return attrs.evolve(job, source=spec, sink=sink, destination=str(here / job.destination))


def _send_disabled(spark: SparkSession) -> None:
    """Omit the plugins in the job's Python workers that this process omits. Raises ConfigError on Spark Connect."""
    names = disabled_plugins()
    if not is_remote():
        spark.sparkContext.environment.pop(DISABLED, None)
        if names:
            spark.sparkContext.environment[DISABLED] = "\n".join(names)
    elif names:
        raise ConfigError(f"disabled: Spark Connect cannot omit {', '.join(names)}. Use another master, or --runner local.")


@contextmanager
def watch(spark: SparkSession, progress: ProgressCallback | None = None) -> Iterator[None]:
    """Call ``progress(finished tasks, known tasks)`` five times a second during the block, on another thread.

    Neither number falls, but Spark makes later stages known late. After a successful end, all known tasks are reported as
    finished. Raises SparkUnavailable if there are tasks, but no executor for a minute: Spark would wait for ever. A session on
    Spark Connect is not watched.
    """
    if is_remote():
        yield
        return
    context, ended, stages = spark.sparkContext, threading.Event(), dict[int, tuple[int, int]]()
    tracker, is_lost = context.statusTracker(), threading.Event()

    def poll() -> None:
        seen = time.monotonic()
        while not ended.wait(_POLL_SECONDS):
            active = tracker.getActiveStageIds()
            for stage in {*stages, *active}:  # a stage that has ended may have finished tasks since the last poll
                if info := tracker.getStageInfo(stage):
                    done, known = stages.get(stage, (0, 0))  # a repeated stage begins anew, with fewer tasks
                    stages[stage] = max(done, info.numCompletedTasks), max(known, info.numTasks)
            if stages and progress:
                progress(sum(done for done, _ in stages.values()), sum(known for _, known in stages.values()))
            if not active or executors.count(spark):
                seen = time.monotonic()
            elif time.monotonic() - seen > executors.TIMEOUT_SECONDS:
                is_lost.set()
                context.cancelAllJobs()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if is_lost.is_set():
            raise executors.no_executor(spark) from error
        raise
    finally:
        ended.set()
        thread.join()
    if progress and (known := sum(known for _, known in stages.values())):
        progress(known, known)
