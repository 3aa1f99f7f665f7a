"""Progress of a job: number of finished tasks, and of all tasks known so far."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore.jobs.tasks import Progress

_POLL_SECONDS = 0.2


@contextmanager
def report_progress(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Call ``progress(finished tasks, known tasks)`` five times a second during the block, on another thread.

    After a successful end, all known tasks are reported as finished. A session on Spark Connect reports no progress.
    """
    if progress is None or is_remote():
        yield
        return
    tracker, ended, stages = spark.sparkContext.statusTracker(), threading.Event(), dict[int, tuple[int, int]]()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            for stage in tracker.getActiveStageIds():
                if info := tracker.getStageInfo(stage):
                    stages[stage] = info.numCompletedTasks, info.numTasks
            if stages:
                progress(sum(done for done, _ in stages.values()), sum(known for _, known in stages.values()))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if known := sum(known for _, known in stages.values()):
        progress(known, known)
