"""How far a job is: the tasks that executors have finished, as a share of those that are known."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import StatusTracker
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore.jobs.runner import Progress

_EVERY = 0.2
"""Seconds."""
Seen = dict[int, tuple[int, int]]
"""Stage to (tasks finished, tasks known)."""


@contextmanager
def watched(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """While something runs call ``progress(tasks finished, tasks known)``: from a thread, or, with Spark Connect, whenever its
    server tells, which it does every two seconds. When it has ended well all that are known are finished."""
    if progress is None:
        yield
        return
    seen: Seen = {}
    with _told_by_the_server(spark, progress, seen) if is_remote() else _asked_for(spark, progress, seen):
        yield
    _tell({stage: (known, known) for stage, (_, known) in seen.items()}, progress)


@contextmanager
def _told_by_the_server(spark: SparkSession, progress: Progress, seen: Seen) -> Iterator[None]:
    def listen(stages: Iterable[Any] | None, **_: object) -> None:
        """A ``ProgressHandler``, which PySpark declares where the packages of Connect must be installed."""
        seen.update({stage.stage_id: (stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()})
        _tell(seen, progress)

    handler: Any = listen
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def _asked_for(spark: SparkSession, progress: Progress, seen: Seen) -> Iterator[None]:
    ended = threading.Event()
    arguments = (spark.sparkContext.statusTracker(), progress, seen, ended)
    thread = threading.Thread(target=_watch, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(tracker: StatusTracker, progress: Progress, seen: Seen, ended: threading.Event) -> None:
    while not ended.wait(_EVERY):
        for stage in tracker.getActiveStageIds():
            found = tracker.getStageInfo(stage)
            if found is not None:
                seen[stage] = found.numCompletedTasks, found.numTasks
        _tell(seen, progress)


def _tell(seen: Seen, progress: Progress) -> None:
    if seen:
        progress(sum(done for done, _ in seen.values()), sum(known for _, known in seen.values()))
