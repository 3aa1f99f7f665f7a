"""Where the time of a job of the pipeline goes: for what is missed."""

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
"""Segments that are read under a profiler."""
STAGES = 10


def of_count(inputs: Mapping[str, Any], slopes: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[str, list[Line]]:
    """What each record costs above the fixed cost of a job, by kind of process; what two processes get of this machine; and
    the functions of a worker."""
    records = inputs["messages"] * (inputs["times"] - 1)
    lines = []
    for peer, by_kind in slopes.items():
        for kind, rounds in by_kind.items():
            what = f"{peer}, by the clock" if kind == "clock" else f"{peer}, processor time of {kind} processes"
            if any(rounds) or kind != JVM:
                lines.append(Line(what, statistics.median(rounds) / records * 1e9, "ns"))
    lines.append(Line("plain Python, processor time of a core, two at once / alone", _together(inputs), ""))
    found = children.call(worker, inputs["store"])
    return "nanoseconds a record; then functions of a worker by own time under cProfile, a record", [
        *lines,
        *(Line(*line) for line in found),
    ]


def _together(inputs: Mapping[str, Any]) -> float:
    """By how much a scan becomes slower if another one runs beside it."""

    def scan(_: int) -> float:
        rows = children.call(jobs.plain_python, inputs, [jobs.COUNT])
        return float(next(wall for name, wall, _ in rows if name == jobs.LARGER))

    with ThreadPoolExecutor(2) as pool:
        return max(pool.map(scan, range(2))) / scan(0)


def worker(store: str) -> list[tuple[str, float, str]]:
    """What the data source does in a task, in this process."""
    import pyarrow as pa

    from msgstore.jobs.columns.batches import Wanted, record_batches

    schema = pa.schema([("id", pa.binary())])
    chosen = find_inputs(load_catalogue(), [store]).inputs[:PROFILED]
    messages = 0

    def read() -> None:
        nonlocal messages
        messages = sum(b.num_rows for found in chosen for b in record_batches(found, schema, Wanted(("id",))))

    read()
    return [(line.what, line.value, line.unit) for line in own_times(read, messages)]


def of_reconcile(inputs: Mapping[str, Any], master: str) -> tuple[str, list[Line]]:
    found = children.call(stages, inputs, master)
    return "stages of reconcile, then of the bare join: milliseconds of all its tasks", [Line(*line) for line in found]


def stages(inputs: Mapping[str, Any], master: str) -> list[tuple[str, float, str]]:
    """In a child: what Spark says of the stages of one job of each, after one of each that is not counted."""
    from msgstore_spark import session

    spark = session(master)
    store = spark.sparkContext._jsc.sc().statusStore()
    frames = jobs.Frames(spark)
    lines: list[tuple[str, float, str]] = []
    for counted in (False, True):
        for name in (jobs.RECONCILE, jobs.BARE):
            seen = _stages(store).size()
            if name == jobs.RECONCILE:
                jobs.of_engine(jobs.Clock(), inputs, [name], jobs.engine(master), everything=False)
            else:
                frames.bare(inputs["records"], inputs["changes"])
            if counted:
                lines += _lines(name, _stages(store), seen)
    spark.stop()
    return lines


def _stages(store: Any) -> Any:
    """Of all jobs of this session, with what Spark's own page would show."""
    usual = [getattr(store, f"stageList$default${number}")() for number in range(2, 6)]
    return store.stageList(None, *usual)


def _lines(name: str, listed: Any, seen: int) -> list[tuple[str, float, str]]:
    new = [listed.apply(at) for at in range(listed.size() - seen)]  # the newest first
    new = [stage for stage in new if stage.numCompleteTasks()]
    lines = []
    for stage in sorted(new, key=lambda stage: -stage.executorRunTime())[:STAGES]:
        what = (
            f"{name}, stage {stage.stageId()}: {stage.numCompleteTasks()} tasks, of that the JVM's threads "
            f"{stage.executorCpuTime() / 1e6:,.0f}, garbage {stage.jvmGcTime():,}; in {stage.inputRecords():,} records, "
            f"shuffled in {stage.shuffleReadRecords():,}, out {stage.shuffleWriteRecords():,} ({stage.shuffleWriteBytes():,} B)"
        )
        lines.append((what, float(stage.executorRunTime()), "ms"))
    return lines
