"""Profiles of the pipeline's jobs, for missed requirements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import children
import pipeline_jobs as jobs
from processor import JVM
from profiling import Line, own_times

from msgstore import load_catalogue
from msgstore.jobs.inputs import find_inputs

PROFILED = 4
"""Maximum number of segments that are read under a profiler."""
STAGES = 10


def count_profile(inputs: Mapping[str, Any], slopes: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[str, list[Line]]:
    """Profile a count: cost per record by kind of process, slowdown of two concurrent scans, functions of a worker."""
    records = inputs["messages"] * (inputs["times"] - 1)
    lines = []
    for peer, by_kind in slopes.items():
        for kind, rounds in by_kind.items():
            what = f"{peer}, wall time" if kind == "clock" else f"{peer}, processor time of {kind} processes"
            if any(rounds) or kind != JVM:
                lines.append(Line(what, statistics.median(rounds) / records * 1e9, "ns"))
    lines.append(Line("plain Python, wall time of two concurrent scans / of one scan", _concurrent_slowdown(inputs), ""))
    found = children.call(worker, inputs["store"])
    return "nanoseconds per record; then functions of a worker by own time per record, under cProfile", [
        *lines,
        *(Line(*line) for line in found),
    ]


def _concurrent_slowdown(inputs: Mapping[str, Any]) -> float:
    """Return the factor by which a scan is slower if another one runs at the same time."""

    def scan(_: int) -> float:
        rows = children.call(jobs.plain_python, inputs, [jobs.COUNT])
        return float(next(wall for name, wall, _ in rows if name == jobs.LARGER))

    with ThreadPoolExecutor(2) as pool:
        return max(pool.map(scan, range(2))) / scan(0)


def worker(store: str) -> list[tuple[str, float, str]]:
    """Profile the work of the data source in a task, in this process."""
    import pyarrow as pa

    from msgstore.jobs.columns.batches import record_batches

    schema = pa.schema([("id", pa.binary())])
    chosen = find_inputs(load_catalogue(), [store]).inputs[:PROFILED]
    messages = 0

    def read() -> None:
        nonlocal messages
        messages = sum(b.num_rows for found in chosen for b in record_batches(found, schema))

    read()
    return [(line.what, line.value, line.unit) for line in own_times(read, messages)]


def reconcile_profile(inputs: Mapping[str, Any], master: str) -> tuple[str, list[Line]]:
    found = children.call(stages, inputs, master)
    return "stages of reconcile, then of the bare join: milliseconds of all tasks", [Line(*line) for line in found]


def stages(inputs: Mapping[str, Any], master: str) -> list[tuple[str, float, str]]:
    """Return Spark's figures of the stages of reconcile and of the bare join, after an uncounted run of each.

    Runs in a child process.
    """
    from msgstore_spark import session

    spark = session(master)
    store = spark.sparkContext._jsc.sc().statusStore()
    frames = jobs.Frames(spark)
    lines: list[tuple[str, float, str]] = []
    for counted in (False, True):
        for name in (jobs.RECONCILE, jobs.BARE):
            seen = _stages(store).size()
            if name == jobs.RECONCILE:
                jobs.run_jobs(jobs.JobTimer(), inputs, [name], jobs.spark_runner(master), everything=False)
            else:
                frames.bare(inputs["records"], inputs["changes"])
            if counted:
                lines += _lines(name, _stages(store), seen)
    spark.stop()
    return lines


def _stages(store: Any) -> Any:
    """Return the stages of all jobs of this session, as Spark's web page shows them."""
    defaults = [getattr(store, f"stageList$default${number}")() for number in range(2, 6)]
    return store.stageList(None, *defaults)


def _lines(name: str, listed: Any, seen: int) -> list[tuple[str, float, str]]:
    new = [listed.apply(at) for at in range(listed.size() - seen)]  # the newest first
    new = [stage for stage in new if stage.numCompleteTasks()]
    lines = []
    for stage in sorted(new, key=lambda stage: -stage.executorRunTime())[:STAGES]:
        what = (
            f"{name}, stage {stage.stageId()}: {stage.numCompleteTasks()} tasks; of that, JVM threads "
            f"{stage.executorCpuTime() / 1e6:,.0f}, JVM garbage collection {stage.jvmGcTime():,}; records read "
            f"{stage.inputRecords():,}, shuffle read {stage.shuffleReadRecords():,}, shuffle write "
            f"{stage.shuffleWriteRecords():,} ({stage.shuffleWriteBytes():,} B)"
        )
        lines.append((what, float(stage.executorRunTime()), "ms"))
    return lines
