"""Job runner ``local``: tasks in processes of one machine, with the results in the order of the tasks.

Ids and locations of all records are in the memory of the process that called the job.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import Any

from msgstore.builtin.plugin import LocalOptions
from msgstore.contract import StoreError
from msgstore.jobs.messages.conversion_plan import ConvertJob
from msgstore.jobs.messages.conversion_report import ConvertReport
from msgstore.jobs.messages.convert import Refused, convert
from msgstore.jobs.messages.listing import size_of
from msgstore.jobs.runner import JobRunner
from msgstore.jobs.tasks import ProgressCallback, ProgressMeter, R, Run, T

_AHEAD = 2
"""Tasks per process that are started before the oldest result is taken. Their results wait in memory."""


class LocalRunner(JobRunner):
    """Runner of jobs in processes of this machine."""

    def __init__(self, options: LocalOptions) -> None:
        self._processes = options.processes or processors()

    def convert(
        self, job: ConvertJob, progress: ProgressCallback | None = None, on_refused: Refused | None = None
    ) -> ConvertReport:
        """Copy messages one after the other, so that the conversion can be continued."""
        return convert(job, ProgressMeter(size_of(Path(job.source.path)), progress), on_refused)

    def run(self, tasks: Sized) -> contextlib.AbstractContextManager[Run[Any, Any]]:
        return task_runner(self._processes, len(tasks))


@contextlib.contextmanager
def task_runner(processes: int, tasks: int) -> Iterator[Callable[[Callable[[T], R], Iterable[T]], Iterable[R]]]:
    """Yield ``run(function, tasks)``, which uses at most ``processes`` processes, or this one if one is enough.

    ``function`` and tasks are pickled. Each new process imports the script, which needs ``if __name__ == "__main__"``. An
    exception of a task is raised where its result is taken. Raises StoreError if a process was killed.
    """
    processes = min(processes, tasks)
    if processes <= 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin) as pool:
        try:
            yield lambda function, todo: _ordered(pool, processes * _AHEAD, function, todo)
        except BrokenProcessPool as error:
            raise StoreError(
                "a process that did part of the job was killed: for want of memory, or by a file of more than 64 MiB that was "
                "cut, or could not be read; or it could not begin, as in a script that has no 'if __name__ == \"__main__\":' "
                "around what it does. Nothing was kept; begin again with fewer processes (--processes 1)"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ordered(pool: ProcessPoolExecutor, ahead: int, function: Callable[[T], R], todo: Iterable[T]) -> Iterator[R]:
    rest = iter(todo)
    with _uninterrupted():  # the processes start here and inherit it, so that only the parent reports Ctrl-C
        waiting: deque[Future[R]] = deque(pool.submit(function, task) for task in islice(rest, ahead))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(pool.submit(function, task) for task in islice(rest, 1))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C during the block. Does nothing in other threads than the main one, which cannot change that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin() -> None:
    """Prepare a worker process: ignore Ctrl-C, and exit if the parent is killed. It would wait permanently otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: connection.wait([parent.sentinel]) and os._exit(1), daemon=True).start()


def processors() -> int:
    """Return the number of CPUs available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
