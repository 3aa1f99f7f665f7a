"""Progress of a job: number of finished tasks, and of all tasks known so far."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import StatusTracker
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore.jobs.tasks import Progress

_POLL_SECONDS = 0.2
Stages = dict[int, tuple[int, int]]
"""Stage to (finished tasks, known tasks)."""


@contextmanager
def report_progress(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Call ``progress(finished tasks, known tasks)`` during the block.

    It is called on another thread: five times a second, or, with Spark Connect, when the server reports, every two seconds.
    After a successful end, all known tasks are reported as finished.
    """
    if progress is None:
        yield
        return
    stages: Stages = {}
    with _server_reports(spark, progress, stages) if is_remote() else _polling_thread(spark, progress, stages):
        yield
    _report({stage: (known, known) for stage, (_, known) in stages.items()}, progress)


@contextmanager
def _server_reports(spark: SparkSession, progress: Progress, known_stages: Stages) -> Iterator[None]:
    def listen(stages: Iterable[Any] | None, **_: object) -> None:
        """Implement PySpark's ``ProgressHandler``. Its declaration can only be imported with the packages of Connect."""
        known_stages.update({stage.stage_id: (stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()})
        _report(known_stages, progress)

    handler: Any = listen
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def _polling_thread(spark: SparkSession, progress: Progress, stages: Stages) -> Iterator[None]:
    ended = threading.Event()
    arguments = (spark.sparkContext.statusTracker(), progress, stages, ended)
    thread = threading.Thread(target=_poll, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _poll(tracker: StatusTracker, progress: Progress, stages: Stages, ended: threading.Event) -> None:
    while not ended.wait(_POLL_SECONDS):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                stages[stage] = info.numCompletedTasks, info.numTasks
        _report(stages, progress)


def _report(stages: Stages, progress: Progress) -> None:
    if stages:
        progress(sum(done for done, _ in stages.values()), sum(known for _, known in stages.values()))
