"""The shortest proof that the pipeline works: Spark reads, salvages and writes two segments that RabbitMQ wrote."""

from __future__ import annotations

import pytest

import msgstore
from mess import DATA
from msgstore.files import Files
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage
from msgstore.scan import FormatSet, scan_file

CATALOGUE = msgstore.load_catalogue()
STORE = DATA / "msg-store" / "v2_dirty_torn" / "store"


@pytest.fixture(scope="module")
def scanned():
    """Segment to its number of records, as the scan of core counts them."""
    form = FormatSet(CATALOGUE).by_name("v2")
    return {path.name: len(scan_file(Files(), path, form).scan.records) for path in sorted(STORE.glob("*.sqs"))}


def test_spark_reads_every_record_of_two_segments(spark, scanned):
    rows = spark.read.format("msgstore").load(str(STORE)).groupBy("file").count().collect()
    assert {row["file"]: row["count"] for row in rows} == scanned
    assert len(scanned) == 2


def test_spark_salvages_what_processes_salvage(spark, tmp_path):
    reports = []
    for name, options in {"local": {"processes": 1}, "spark": {}}.items():
        job = plan_salvage(CATALOGUE, [STORE], tmp_path / name)
        reports.append(make_runner(CATALOGUE, name, options).salvage(job).as_json())
    local, by_spark = ({key: value for key, value in report.items() if key != "destination"} for report in reports)
    assert by_spark == local


def test_spark_writes_a_store_that_core_opens(spark, tmp_path, scanned):
    found = spark.read.format("msgstore").schema("id binary, body binary").load(str(STORE)).dropDuplicates(["id"])
    found.write.format("msgstore").mode("append").save(str(tmp_path / "copy"))
    with msgstore.open_store(tmp_path / "copy", mode="r") as store:
        assert store.stats().messages == found.count() <= sum(scanned.values())
