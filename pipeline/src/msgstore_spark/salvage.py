"""Salvage and migration on DataFrames.

Tasks examine segments. Spark shuffles ids with the locations of their records, never a body. Then tasks read the selected
records again and copy them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from msgstore.contract import Columns, Damage
from msgstore.jobs.columns.sums import int64
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import StorePart
from msgstore.jobs.reading.segment_check import IntactRecords
from msgstore.jobs.salvage import NAMED, InputReport, SalvageJob, SalvageReport, Selection, copy, examine, report_of
from msgstore_spark.jobs import read_counts
from msgstore_spark.tasks import IS_RECORD, SegmentRows, absolute, first_copies, on_disk, read_segments, segment_results

_SELECTED = pa.schema({"task": pa.int32(), "rank": pa.int64(), "offset": pa.int64(), "id": pa.binary(), "size": pa.int64()})
_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
Results = Mapping[int, tuple[int, IntactRecords]]
"""Rank to (bytes of intact records, findings without the records) of a segment."""


def salvage(spark: SparkSession, job: SalvageJob) -> SalvageReport:
    """Run the job and return its report. Spark may repeat every step except the last, which publishes the store."""
    columns = {"size": pa.int64(), "recovered": pa.bool_()} | ({} if job.live is None else {"live": pa.bool_()})
    examined = read_segments(spark, partial(_examine, job=job.for_workers()), job.tasks(), **columns)
    counts = None if job.counts is None else read_counts(spark, job.counts)
    records = examined.where(IS_RECORD)
    referenced = records if counts is None else records.join(counts.select("id"), "id", "left_semi")
    copied = referenced if job.live is None else referenced.where("live")
    first = first_copies(copied, job.found.inputs, "rank", "offset", "size", "recovered")
    with on_disk(examined, counts, first):
        missing, names = 0, []
        if counts is not None:
            absent = counts.join(first, "id", "left_anti")
            missing, names = absent.count(), [bytes(row.id) for row in absent.orderBy("id").limit(NAMED).collect()]
        results: Results = segment_results(examined)
        report = report_of(job, _rows(job, results, first, None if counts is None else referenced), missing, names)
        with StoreStaging.begin(job.target, sources=job.sources) as staging:
            parts = _copy(spark, first, results, job, staging.path)
            staging.commit(parts, _counts_of(counts, first), check=job.found.check_no_writer_since)
    return report


def _examine(item: SegmentInput, job: SalvageJob) -> SegmentRows:
    found = examine(item, job)
    records = found.records
    flags = {"recovered": found.recovered} | ({} if job.live is None else {"live": found.live})
    columns = {name: pa.Array.from_buffers(pa.int8(), len(records), [None, pa.py_buffer(bits)]) for name, bits in flags.items()}
    result = (sum(records.sizes), attrs.evolve(found, records=Columns(), recovered=b"", live=b""))
    return records, {"size": int64(records.sizes)} | {name: pc.equal(flag, 1) for name, flag in columns.items()}, result


def _rows(
    job: SalvageJob, results: Results, first: DataFrame, referenced: DataFrame | None
) -> list[tuple[InputReport, Sequence[Damage]]]:
    """Return the report of each segment, by rank. ``referenced``: records whose ids have references, if counts were given.

    Collects one row per segment, and one per record that was recovered after damage.
    """
    good = _sums(first)
    alive = good if referenced is None else _sums(referenced)
    recovered: dict[int, list[tuple[bytes, int, int]]] = {}
    after_damage = first.where("recovered").collect()  # few: Spark's orderBy would read all rows twice more
    for row in sorted(after_damage, key=attrgetter("rank", "offset")):
        recovered.setdefault(row.rank, []).append((bytes(row.id), row.offset, row.size))
    rows: list[tuple[InputReport, Sequence[Damage]]] = []
    for item in job.found.inputs:
        total, found = results[item.rank]
        report = InputReport.of(item, found)
        report.good, report.records = good.get(item.rank, (0, 0))
        report.dead = total - alive.get(item.rank, (0, 0))[0] if referenced is not None else 0
        report.duplicates = total - report.good - report.dead
        for record in recovered.get(item.rank, ()):
            report.recovered.add(*record)
        rows.append((report, found.damage))
    return rows


def _sums(records: DataFrame) -> dict[int, tuple[int, int]]:
    """Return (bytes, records) by rank."""
    found = records.groupBy("rank").agg(sf.sum("size").alias("bytes"), sf.count("*").alias("records")).collect()
    return {row.rank: (row.bytes, row.records) for row in found}


def _copy(spark: SparkSession, first: DataFrame, results: Results, job: SalvageJob, staging: str) -> Iterator[StorePart]:
    """Copy the first copies, and yield a part for each task that has any. Spark returns the rows of one attempt per task."""
    tasks, light = job.tasks(), job.for_workers()
    checked = [[(absolute(item), results[item.rank][1].crc32) for item in task] for task in tasks]
    numbers = [(item.rank, number) for number, task in enumerate(tasks) for item in task]
    by_rank = spark.createDataFrame(numbers, "rank long, task int")
    by_task = first.join(sf.broadcast(by_rank), "rank").repartitionById(max(1, len(tasks)), "task")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the records of one task: a partition has no other."""
        selected = pa.Table.from_batches(batches, _SELECTED).sort_by([("rank", "ascending"), ("offset", "ascending")])
        if selected.num_rows:
            number = selected["task"][0].as_py()
            part = copy((number, _selections(checked[number], selected)), light, staging)
            yield pa.record_batch([[pickle.dumps(part)]], ["part"])

    with _small_types(spark):
        rows = by_task.select(_SELECTED.names).mapInArrow(run, "part binary").collect()
    for row in rows:
        yield pickle.loads(row.part)


@contextmanager
def _small_types(spark: SparkSession) -> Iterator[None]:
    """Let Spark exchange values with offsets of 32 bits, whatever the session says: the tasks have small ones."""
    before = spark.conf.get(_LARGE_TYPES)
    spark.conf.set(_LARGE_TYPES, "false")
    try:
        yield
    finally:
        spark.conf.set(_LARGE_TYPES, before or "false")


def _selections(task: Sequence[tuple[SegmentInput, int]], selected: pa.Table) -> Iterator[Selection]:
    for item, crc32 in task:
        rows = selected.filter(pc.equal(selected["rank"], item.rank)).combine_chunks()
        if count := rows.num_rows:
            records = Columns(bytearray(b"".join(rows["id"].to_pylist())), types=bytearray(count))
            for column, name in (records.offsets, "offset"), (records.sizes, "size"):
                for chunk in rows[name].chunks:
                    column.frombytes(chunk.buffers()[1].slice(8 * chunk.offset, 8 * len(chunk)))
            yield Selection(item, crc32, records)


def _counts_of(counts: DataFrame | None, first: DataFrame) -> Iterator[tuple[bytes, int]] | None:
    """Return (id, count) of each copied id; None without counts."""
    if counts is None:
        return None
    rows = counts.join(first.select("id"), "id", "left_semi").select("id", "count").toLocalIterator()
    return ((bytes(row.id), row["count"]) for row in rows)
