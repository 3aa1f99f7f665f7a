"""Salvage and migration on DataFrames: segments are examined, ids shuffled with the places of their records, never a body; then
each task reads again what it copies."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.contract import Columns, Damage
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.commit import Staging
from msgstore.jobs.output.parts import Part
from msgstore.jobs.reports import InputReport, SalvageReport
from msgstore.jobs.salvage import ExaminedSegment, SalvageJob, Selection, check_complete, copy, examine, report_of
from msgstore_spark.counts import read_counts
from msgstore_spark.tasks import absolute, map_tasks

_NAMED = 5
"""Missing ids that an error names."""
RECORD, INPUT = 0, 1
Told = Mapping[int, tuple[int, ExaminedSegment]]
"""Rank to what was found in a segment: bytes of good records, and the rest without them."""
_EXAMINED = "kind tinyint, rank long, offset long, size long, id binary, recovered boolean, input binary"
_ARROW = pa.schema(
    [
        ("kind", pa.int8()),
        ("rank", pa.int64()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("id", pa.binary()),
        ("recovered", pa.bool_()),
        ("input", pa.binary()),
    ]
)


def salvage(spark: SparkSession, job: SalvageJob) -> SalvageReport:
    """Every step but the last is one that Spark may run again; the store appears in the last."""
    tasks = job.tasks()
    examined = map_tasks(spark, partial(_examine_all, job=job.for_workers()), tasks, _EXAMINED).persist(StorageLevel.DISK_ONLY)
    counts = None if job.counts is None else read_counts(spark, job.counts).persist(StorageLevel.DISK_ONLY)
    first = _first_copies(examined.where(sf.col("kind") == RECORD), counts).persist(StorageLevel.DISK_ONLY)
    try:
        missing, names = _missing(counts, first)
        told = _told(examined)
        report = report_of(job, _rows(job, told, examined, first, counts), missing)
        check_complete(job, report, names)
        staging = Staging.begin(job.target, sources=job.sources)
        try:
            staging.commit(_copied(spark, first, tasks, told, job, staging.path), _of_taken(counts, first))
        except BaseException:
            staging.abandon()
            raise
    finally:
        for frame in (examined, first, counts):
            if frame is not None:
                frame.unpersist()
    return report


# -- what executors do --------------------------------------------------------------------------------------------------------


def _examine_all(_: int, task: Iterable[SegmentInput], job: SalvageJob) -> Iterator[pa.RecordBatch]:
    for item in task:
        found = examine(item, job)
        yield _of_records(item.rank, found)
        told = pickle.dumps((sum(found.records.sizes), attrs.evolve(found, records=Columns(), recovered=b"")))
        values = [[INPUT], [item.rank], [None], [None], [None], [None], [told]]
        yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, _ARROW, strict=True)], schema=_ARROW)


def _of_records(rank: int, found: ExaminedSegment) -> pa.RecordBatch:
    """The columns are viewed as they are."""
    columns, count = found.records, len(found.records)
    ids = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(columns.ids)]).cast(pa.binary())
    again = pc.equal(pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(found.recovered)]), 1)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(RECORD, pa.int8()), count),
            pa.repeat(pa.scalar(rank, pa.int64()), count),
            _int64(columns.offsets),
            _int64(columns.sizes),
            ids,
            again,
            pa.nulls(count, pa.binary()),
        ],
        schema=_ARROW,
    )


def _int64(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


Seen = tuple[SegmentInput, int]
"""A segment, and the checksum of its bytes as they were examined."""


def _copy_all(number: int, picked: pa.Table, task: Iterable[Seen], job: SalvageJob, staging: str) -> pa.Table:
    """One task: ``picked`` has the records that are copied from its segments."""
    part = copy(number, _picks(task, picked.sort_by([("rank", "ascending"), ("offset", "ascending")])), job, staging)
    return pa.table({"part": pa.array([pickle.dumps(part)], pa.binary())})


def _picks(task: Iterable[Seen], picked: pa.Table) -> Iterator[Selection]:
    for item, crc32 in task:
        rows = picked.filter(pc.equal(picked["rank"], item.rank))
        if rows.num_rows:
            ids = b"".join(rows["id"].to_pylist())
            yield Selection(item, crc32, ids, array("Q", rows["offset"].to_pylist()), array("Q", rows["size"].to_pylist()))


# -- what is shuffled -------------------------------------------------------------------------------------------------------


def _first_copies(records: DataFrame, counts: DataFrame | None) -> DataFrame:
    """id, rank, offset, size, recovered of the first copy of each id; only of those with a reference if there are counts."""
    if counts is not None:
        records = records.join(counts.select("id"), "id", "left_semi")
    place = sf.min(sf.struct("rank", "offset", "size", "recovered")).alias("place")
    return records.groupBy("id").agg(place).select("id", "place.*")


def _missing(counts: DataFrame | None, first: DataFrame) -> tuple[int, list[bytes]]:
    """How many ids with a reference have no record, and some of them."""
    if counts is None:
        return 0, []
    absent = counts.join(first, "id", "left_anti")
    return absent.count(), [bytes(row.id) for row in absent.orderBy("id").limit(_NAMED).collect()]


def _told(examined: DataFrame) -> Told:
    return {row.rank: pickle.loads(row.input) for row in examined.where(sf.col("kind") == INPUT).collect()}


def _rows(
    job: SalvageJob, told: Told, examined: DataFrame, first: DataFrame, counts: DataFrame | None
) -> list[tuple[SegmentInput, InputReport, Sequence[Damage]]]:
    """By rank. What comes to the driver is a row for each segment, and one for each record that was found behind damage."""
    good = _sums(first)
    alive = good if counts is None else _sums(_alive(examined, counts))
    again: dict[int, list[tuple[bytes, int, int]]] = {}
    for row in first.where("recovered").orderBy("rank", "offset").collect():
        again.setdefault(row.rank, []).append((bytes(row.id), row.offset, row.size))
    rows: list[tuple[SegmentInput, InputReport, Sequence[Damage]]] = []
    for item in job.found.inputs:
        total, found = told[item.rank]
        report = InputReport(item.path, item.format, found.size, found.header, holes=found.holes)
        report.good, report.records = good.get(item.rank, (0, 0))
        report.dead = 0 if counts is None else total - alive.get(item.rank, (0, 0))[0]
        report.duplicates = total - report.good - report.dead
        report.damaged = sum(spot.size for spot in found.damage)
        for record in again.get(item.rank, ()):
            report.recovered.add(*record)
        rows.append((item, report, found.damage))
    return rows


def _alive(examined: DataFrame, counts: DataFrame) -> DataFrame:
    return examined.where(sf.col("kind") == RECORD).join(counts.select("id"), "id", "left_semi")


def _sums(records: DataFrame) -> dict[int, tuple[int, int]]:
    """Rank to (bytes, records)."""
    found = records.groupBy("rank").agg(sf.sum("size").alias("bytes"), sf.count("*").alias("records")).collect()
    return {row.rank: (row.bytes, row.records) for row in found}


def _copied(
    spark: SparkSession, first: DataFrame, tasks: Sequence[Sequence[SegmentInput]], told: Told, job: SalvageJob, staging: str
) -> Iterator[Part]:
    """A part for each task that has something to copy. Spark keeps the rows of one attempt of a task only."""
    seen = [[(absolute(item), told[item.rank][1].crc32) for item in task] for task in tasks]
    light = job.for_workers()
    numbers = [(item.rank, number) for number, task in enumerate(tasks) for item in task]
    by_rank = spark.createDataFrame(numbers, "rank long, task long")
    # A number of partitions of our own: what is shuffled is small, and Spark would join it into one.
    with_task = first.join(sf.broadcast(by_rank), "rank").repartition(max(1, len(tasks)), "task")

    def run(key: tuple[pa.Scalar, ...], picked: pa.Table) -> pa.Table:
        return _copy_all(key[0].as_py(), picked, seen[key[0].as_py()], light, staging)

    for row in with_task.groupBy("task").applyInArrow(run, "part binary").collect():
        yield pickle.loads(row.part)


def _of_taken(counts: DataFrame | None, first: DataFrame) -> Iterator[tuple[bytes, int]] | None:
    if counts is None:
        return None
    rows = counts.join(first.select("id"), "id", "left_semi").select("id", "count").toLocalIterator()
    return ((bytes(row.id), row["count"]) for row in rows)
