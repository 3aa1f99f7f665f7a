"""Functions that the benchmark of the pipeline runs, each in a separate process with separate caches.

Each function returns rows of (job, wall seconds, processor seconds by kind). The result of each job is compared with the
input.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processor
from pipeline_data import SMALL_RECORDS

from msgstore import load_catalogue
from msgstore.builtin.plugin import LocalOptions
from msgstore.contract import Columns
from msgstore.files import Files
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.inputs import find_inputs, open_input
from msgstore.jobs.inventory import plan_inventory
from msgstore.jobs.local import LocalRunner
from msgstore.jobs.reconcile import CLASSES, plan_reconcile
from msgstore.jobs.runner import JobRunner
from msgstore.jobs.salvage import plan_salvage

COUNT, LARGER, DEDUPE, SALVAGE, RECONCILE = "count", "count of the larger", "dedupe", "salvage", "reconcile"
ALL_COLUMNS, SMALL = "count, all columns", "count of small segments"
PARQUET_COUNT, PARQUET_DEDUPE, BARE = "Parquet count", "Parquet dedupe", "bare join"
SESSION, FIRST, STOP = "session", "first job", "stop"
Row = tuple[str, float, dict[str, float]]
Inputs = Mapping[str, Any]
"""Paths and numbers of :func:`pipeline.create_inputs`."""


class JobTimer:
    """Times of the jobs of one process."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def time(self, name: str, action: Callable[[], object], expected: object = None) -> None:
        before, start = processor.seconds(), time.perf_counter()
        found = action()
        wall, after = time.perf_counter() - start, processor.seconds()
        if expected is not None and found != expected:
            raise RuntimeError(f"{name} returned {found!r} instead of {expected!r}")
        self.rows.append((name, wall, {kind: after[kind] - before[kind] for kind in after}))


def plain_python(inputs: Inputs, jobs: list[str]) -> list[Row]:
    """Time a loop in one process, as a script of ten lines has it."""
    clock, messages = JobTimer(), inputs.get("messages")
    if COUNT in jobs:
        _count(inputs["store"])
        clock.time(COUNT, lambda: _count(inputs["store"]), messages)
        clock.time(LARGER, lambda: _count(inputs["larger"]), messages * inputs["times"])
        clock.time(SMALL, lambda: _count(inputs["small"]), inputs["small segments"] * SMALL_RECORDS)
    if DEDUPE in jobs:
        clock.time(DEDUPE, lambda: _dedupe(inputs["store"]), messages)
    return clock.rows


def _count(path: str) -> int:
    return sum(map(len, _scanned(path)))


def _dedupe(path: str) -> int:
    seen: set[bytes] = set()
    for records in _scanned(path):
        seen.update(records.id_list())
    return len(seen)


def _scanned(path: str) -> Iterator[Columns]:
    for found in find_inputs(load_catalogue(), [path]).inputs:
        with Files().view(Path(found.path)) as data:
            yield open_input(found).format.scan(data).records


def local(inputs: Inputs, jobs: list[str], processes: int) -> list[Row]:
    """Time the jobs on local processes."""
    clock = JobTimer()
    run_jobs(clock, inputs, jobs, LocalRunner(LocalOptions(processes)), everything=True)
    return clock.rows


def run_jobs(clock: JobTimer, inputs: Inputs, jobs: list[str], runner: JobRunner, *, everything: bool) -> None:
    """Time the jobs of core. ``everything`` includes count and dedupe, which Spark runs on DataFrames instead."""
    catalogue, messages = load_catalogue(), inputs.get("messages")

    def count(path: str) -> int:
        report = runner.inventory(plan_inventory(catalogue, [Path(path)], 0.0))
        return sum(segment.records for segment in report.segments())

    def dedupe() -> int:
        none = Path(inputs["no changes"])
        return runner.reconcile(plan_reconcile(catalogue, [Path(inputs["store"])], [none])).classes["orphan"].ids

    def salvage() -> int:
        to = Path(inputs["store"] + ".salvaged")
        return runner.salvage(plan_salvage(catalogue, [Path(inputs["store"])], to)).messages

    def reconcile() -> dict[str, list[int]]:
        job = plan_reconcile(catalogue, [Path(inputs["reconciled"])], [Path(inputs["changes"])])
        return {name: [found.ids, found.references, found.size] for name, found in runner.reconcile(job).classes.items()}

    if COUNT in jobs and everything:
        clock.time(COUNT, lambda: count(inputs["store"]), messages)
        clock.time(LARGER, lambda: count(inputs["larger"]), messages * inputs["times"])
    if DEDUPE in jobs and everything:
        clock.time(DEDUPE, dedupe, messages)
    if SALVAGE in jobs:
        clock.time(SALVAGE, salvage, messages)
        shutil.rmtree(inputs["store"] + ".salvaged")
    if RECONCILE in jobs:
        clock.time(RECONCILE, reconcile, inputs.get("classes"))


def spark(inputs: Inputs, jobs: list[str], master: str) -> list[Row]:
    """Time the jobs on Spark. Each first runs twice untimed, until the JVM has compiled it; salvage once, of a small store."""
    clock = JobTimer()
    with _session(clock, master) as session:
        frames = Frames(session)
        if COUNT in jobs:
            clock.time(FIRST, lambda: frames.count(inputs["store"]), inputs["messages"])
        for chosen in (JobTimer(), JobTimer(), clock):
            _run_on_frames(chosen, frames, inputs, jobs)
            if RECONCILE in jobs:
                run_jobs(chosen, inputs, [RECONCILE], spark_runner(master), everything=False)
                chosen.time(BARE, lambda: frames.bare(inputs["records"], inputs["changes"]), inputs.get("classes"))
        if COUNT in jobs:
            clock.time(LARGER, lambda: frames.count(inputs["larger"]), inputs["messages"] * inputs["times"])
        if SALVAGE in jobs:
            one = {"store": f"{inputs['small']}-source", "messages": SMALL_RECORDS}
            for chosen, which in ((JobTimer(), one), (clock, inputs)):
                run_jobs(chosen, which, [SALVAGE], spark_runner(master), everything=False)
    return clock.rows


@contextmanager
def _session(clock: JobTimer, master: str) -> Iterator[Any]:
    from msgstore_spark import session

    started: list[Any] = []
    clock.time(SESSION, lambda: started.append(session(master)))
    try:
        yield started[0]
    finally:
        clock.time(STOP, started[0].stop)


def spark_runner(master: str) -> JobRunner:
    from msgstore_spark.plugin import SparkOptions
    from msgstore_spark.runner import SparkRunner

    return SparkRunner(SparkOptions(master))


def _run_on_frames(clock: JobTimer, frames: Frames, inputs: Inputs, jobs: list[str]) -> None:
    messages = inputs.get("messages")
    if COUNT in jobs:
        clock.time(COUNT, lambda: frames.count(inputs["store"]), messages)
        clock.time(ALL_COLUMNS, lambda: frames.count_all(inputs["store"]), messages)
        clock.time(SMALL, lambda: frames.count(inputs["small"]), inputs["small segments"] * SMALL_RECORDS)
        clock.time(PARQUET_COUNT, lambda: frames.parquet(inputs["parquet"]).count(), messages)
    if DEDUPE in jobs:
        clock.time(DEDUPE, lambda: frames.records(inputs["store"]).distinct().count(), messages)
        clock.time(PARQUET_DEDUPE, lambda: frames.parquet(inputs["parquet"]).distinct().count(), messages)


class Frames:
    """Queries with DataFrames, as a user writes them."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def records(self, path: str) -> Any:
        return self._session.read.format("msgstore").schema("id binary").load(path)

    def count(self, path: str) -> int:
        return int(self.records(path).count())

    def count_all(self, path: str) -> int:
        return int(self._session.read.format("msgstore").load(path).count())

    def parquet(self, path: str) -> Any:
        return self._session.read.parquet(path).select("id")

    def bare(self, records: str, changes: str) -> dict[str, list[int]]:
        """Reconcile with DataFrames that read only Parquet: add the changes by id, join them with records, count classes."""
        from pyspark.sql import functions as sf

        counts = self._session.read.parquet(changes).groupBy("id").agg(sf.sum("count").alias("count"))
        both = counts.join(self._session.read.parquet(records), "id", "full_outer")
        count, has_record = sf.coalesce("count", sf.lit(0)), sf.col("size").isNotNull()
        name = (
            sf.when(count < 0, "negative")
            .when((count > 0) & has_record, "live")
            .when(has_record, "orphan")
            .when(count > 0, "dangling")
            .otherwise("settled")
        )
        sums = [sf.count("*"), sf.sum(count), sf.coalesce(sf.sum("size"), sf.lit(0))]
        rows = both.groupBy(name.alias("class")).agg(*sums).collect()
        return {name: [0, 0, 0] for name in CLASSES} | {row[0]: [*row[1:]] for row in rows}


def classes(inputs: Inputs) -> dict[str, list[int]]:
    """Return the expected result of reconcile, computed without a job runner: [ids, references, bytes] by class."""
    import pyarrow.parquet as pq

    records = pq.read_table(inputs["records"])
    counts = pq.read_table(inputs["changes"]).group_by("id").aggregate([("count", "sum")])
    sizes = dict(zip(records["id"].to_pylist(), records["size"].to_pylist(), strict=True))
    found = {name: [0, 0, 0] for name in CLASSES}

    def add(name: str, count: int, size: int) -> None:
        for at, value in enumerate((1, count, size)):
            found[name][at] += value

    for msg_id, count in zip(counts["id"].to_pylist(), counts["count_sum"].to_pylist(), strict=True):
        size = sizes.pop(msg_id, None)
        if count < 0:
            name = "negative"
        elif size is None:
            name = "dangling" if count else "settled"
        else:
            name = "live" if count else "orphan"
        add(name, count, size or 0)
    for size in sizes.values():
        add("orphan", 0, size)
    return found


def memory_of(job: str, store: str) -> int:
    """Run a job in this process, and return the process's peak memory in bytes."""
    catalogue, runner, sources, to = load_catalogue(), LocalRunner(LocalOptions(1)), [Path(store)], Path(store + ".out")
    if job == "diff":
        runner.diff(plan_diff(catalogue, *sources, *sources))
    elif job == "inventory":
        runner.inventory(plan_inventory(catalogue, sources, 0.0))
    else:
        counts = Path(store + ".counts")
        with counts.open("w") as lines:
            for records in _scanned(store):
                lines.writelines(f"{msg_id.hex()},1\n" for msg_id in records.id_list())
        runner.salvage(plan_salvage(catalogue, sources, to, counts=counts if "counts" in job else None))
        shutil.rmtree(to)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
