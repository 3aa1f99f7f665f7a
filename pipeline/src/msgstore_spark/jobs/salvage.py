"""Salvage and migration on DataFrames.

Tasks examine segments. Spark shuffles ids with the locations of their records, never a body. Then tasks read the selected
records again and copy them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.contract import Columns, Damage
from msgstore.jobs.columns.sums import fixed_width, int64
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part
from msgstore.jobs.reading.segment_check import IntactRecords
from msgstore.jobs.salvage import (
    NAMED,
    InputReport,
    SalvageJob,
    SalvageReport,
    Selection,
    copy,
    examine,
    report_of,
)
from msgstore_spark.counts import read_counts
from msgstore_spark.tasks import absolute, map_tasks, segment_results, segment_rows, segment_schema

Results = Mapping[int, tuple[int, IntactRecords]]
"""Rank to (bytes of intact records, findings without the records) of a segment."""
_SCHEMA = segment_schema(offset=pa.int64(), size=pa.int64(), id=pa.binary(), recovered=pa.bool_())
_IS_RECORD = "result is null"


def salvage(spark: SparkSession, job: SalvageJob) -> SalvageReport:
    """Run the job and return its report. Spark may repeat every step except the last, which publishes the store."""
    tasks = job.tasks()
    examined = map_tasks(spark, partial(_examine_all, job=job.for_workers()), tasks, _SCHEMA).persist(StorageLevel.DISK_ONLY)
    counts = None if job.counts is None else read_counts(spark, job.counts).persist(StorageLevel.DISK_ONLY)
    first = _first_copies(examined.where(_IS_RECORD), counts).persist(StorageLevel.DISK_ONLY)
    try:
        missing, names = _missing(counts, first)
        results: Results = segment_results(examined)
        report = report_of(job, _rows(job, results, examined, first, counts), missing, names)
        with Staging.begin(job.target, sources=job.sources) as staging:
            staging.commit(_copy(spark, first, tasks, results, job, staging.path), _counts_of(counts, first))
    finally:
        for frame in (examined, first, counts):
            if frame is not None:
                frame.unpersist()
    return report


# -- on executors -------------------------------------------------------------------------------------------------------------


def _examine_all(_: int, task: Iterable[SegmentInput], job: SalvageJob) -> Iterator[pa.RecordBatch]:
    for item in task:
        found = examine(item, job)
        records = found.records
        columns = {
            "offset": int64(records.offsets),
            "size": int64(records.sizes),
            "id": fixed_width(records.ids),
            "recovered": pc.equal(pa.Array.from_buffers(pa.int8(), len(records), [None, pa.py_buffer(found.recovered)]), 1),
        }
        result = (sum(records.sizes), attrs.evolve(found, records=Columns(), recovered=b""))
        yield from segment_rows(_SCHEMA, item.rank, columns, result)


Checked = tuple[SegmentInput, int]
"""A segment, and the checksum of its bytes when it was examined."""


def _copy_task(number: int, selected: pa.Table, task: Iterable[Checked], job: SalvageJob, staging: str) -> pa.Table:
    """Copy the records of one task; ``selected`` has their ids and locations. Return the pickled part of the store."""
    selected = selected.sort_by([("rank", "ascending"), ("offset", "ascending")])
    part = copy((number, _selections(task, selected)), job, staging)
    return pa.table({"part": pa.array([pickle.dumps(part)], pa.binary())})


def _selections(task: Iterable[Checked], selected: pa.Table) -> Iterator[Selection]:
    for item, crc32 in task:
        rows = selected.filter(pc.equal(selected["rank"], item.rank))
        if rows.num_rows:
            records = Columns()
            ids, offsets, sizes = (rows[name].to_pylist() for name in ("id", "offset", "size"))
            records.extend(ids, offsets, sizes, bytes(len(ids)))
            yield Selection(item, crc32, records)


# -- on the driver ----------------------------------------------------------------------------------------------------------


def _first_copies(records: DataFrame, counts: DataFrame | None) -> DataFrame:
    """Return (id, rank, offset, size, recovered) of the first copy of each id. With counts, only of ids with a reference."""
    if counts is not None:
        records = records.join(counts.select("id"), "id", "left_semi")
    place = sf.min(sf.struct("rank", "offset", "size", "recovered")).alias("place")
    return records.groupBy("id").agg(place).select("id", "place.*")


def _missing(counts: DataFrame | None, first: DataFrame) -> tuple[int, list[bytes]]:
    """Return the number of ids with a reference but no record, and some of these ids."""
    if counts is None:
        return 0, []
    absent = counts.join(first, "id", "left_anti")
    return absent.count(), [bytes(row.id) for row in absent.orderBy("id").limit(NAMED).collect()]


def _rows(
    job: SalvageJob, results: Results, examined: DataFrame, first: DataFrame, counts: DataFrame | None
) -> list[tuple[InputReport, Sequence[Damage]]]:
    """Return the report of each segment, by rank.

    Collects one row per segment, and one per record that was recovered after damage.
    """
    good = _sums(first)
    referenced = good if counts is None else _sums(_referenced(examined, counts))
    recovered: dict[int, list[tuple[bytes, int, int]]] = {}
    for row in first.where("recovered").orderBy("rank", "offset").collect():
        recovered.setdefault(row.rank, []).append((bytes(row.id), row.offset, row.size))
    rows: list[tuple[InputReport, Sequence[Damage]]] = []
    for item in job.found.inputs:
        total, found = results[item.rank]
        report = InputReport.of(item, found)
        report.good, report.records = good.get(item.rank, (0, 0))
        report.dead = total - referenced.get(item.rank, (0, 0))[0] if counts is not None else 0
        report.duplicates = total - report.good - report.dead
        for record in recovered.get(item.rank, ()):
            report.recovered.add(*record)
        rows.append((report, found.damage))
    return rows


def _referenced(examined: DataFrame, counts: DataFrame) -> DataFrame:
    return examined.where(_IS_RECORD).join(counts.select("id"), "id", "left_semi")


def _sums(records: DataFrame) -> dict[int, tuple[int, int]]:
    """Return (bytes, records) by rank."""
    found = records.groupBy("rank").agg(sf.sum("size").alias("bytes"), sf.count("*").alias("records")).collect()
    return {row.rank: (row.bytes, row.records) for row in found}


def _copy(
    spark: SparkSession,
    first: DataFrame,
    tasks: Sequence[Sequence[SegmentInput]],
    results: Results,
    job: SalvageJob,
    staging: str,
) -> Iterator[Part]:
    """Copy the first copies, and yield a part for each task that has any. Spark returns the rows of one attempt per task."""
    checked = [[(absolute(item), results[item.rank][1].crc32) for item in task] for task in tasks]
    light = job.for_workers()
    numbers = [(item.rank, number) for number, task in enumerate(tasks) for item in task]
    by_rank = spark.createDataFrame(numbers, "rank long, task long")
    # An explicit number of partitions: the shuffled data is small, and Spark would coalesce it into one partition.
    with_task = first.join(sf.broadcast(by_rank), "rank").repartition(max(1, len(tasks)), "task")

    def run(key: tuple[pa.Scalar, ...], selected: pa.Table) -> pa.Table:
        return _copy_task(key[0].as_py(), selected, checked[key[0].as_py()], light, staging)

    for row in with_task.groupBy("task").applyInArrow(run, "part binary").collect():
        yield pickle.loads(row.part)


def _counts_of(counts: DataFrame | None, first: DataFrame) -> Iterator[tuple[bytes, int]] | None:
    """Return (id, count) of each copied id; None without counts."""
    if counts is None:
        return None
    rows = counts.join(first.select("id"), "id", "left_semi").select("id", "count").toLocalIterator()
    return ((bytes(row.id), row["count"]) for row in rows)
