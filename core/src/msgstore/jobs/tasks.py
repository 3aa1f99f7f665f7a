"""Tasks: groups of segments of about equal size, one per call of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import attrs

from msgstore.jobs.inputs import SegmentInput

T = TypeVar("T")
R = TypeVar("R")

ProgressCallback = Callable[[int, int], object]
"""Called with (done, total), in bytes, on the thread that called the job. A job runner may count something else."""
Run = Callable[[Callable[[T], R], Iterable[T]], Iterable[R]]
"""Calls a function for each task, as ``map`` does: the results come in the order of the tasks."""
Task = tuple[SegmentInput, ...]
TASK_SIZE = 64 * 2**20
"""Bytes. With smaller tasks their fixed cost counts; with much larger ones, one worker is busy at the end of a job."""
TASK_FILES = 1024
"""Segments. Opening many small ones takes longer than reading them."""


def group_into_tasks(inputs: Iterable[SegmentInput], target: int = TASK_SIZE) -> list[Task]:
    """Return tasks of at most ``target`` bytes, in the order given, and of at most TASK_FILES segments for each TASK_SIZE of
    ``target``. A larger segment is a task of its own. Deterministic."""
    tasks: list[list[SegmentInput]] = []
    room, files = 0, TASK_FILES * max(1, target // TASK_SIZE)
    for found in inputs:
        if not tasks or found.size > room or len(tasks[-1]) == files:
            tasks.append([])
            room = target
        tasks[-1].append(found)
        room -= found.size
    return [tuple(task) for task in tasks]


@attrs.define
class ProgressMeter:
    """Reports progress. ``total``: bytes that will be added."""

    total: int
    progress: ProgressCallback | None = None
    done: int = 0

    def add(self, size: int) -> None:
        self.done += size
        if self.progress:
            self.progress(self.done, self.total)


def map_segments(
    run: Run[Task, list[R]], function: Callable[[SegmentInput], R], tasks: Sequence[Task], meter: ProgressMeter
) -> Iterator[tuple[SegmentInput, R]]:
    """Yield each segment of the tasks with the result of ``function``, in order."""
    for task, results in zip(tasks, run(partial(_call_each, function), tasks), strict=True):
        for item, result in zip(task, results, strict=True):
            meter.add(item.size)
            yield item, result


def _call_each(function: Callable[[SegmentInput], R], task: Task) -> list[R]:
    return [function(item) for item in task]
