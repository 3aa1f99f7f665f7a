"""Shortest proof that the pipeline works: Spark reads, salvages and writes two segments that RabbitMQ wrote."""

from __future__ import annotations

import msgstore
from mess import DATA
from msgstore.files import Files
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage
from msgstore.scan import FormatSet, scan_file

CATALOGUE = msgstore.load_catalogue()
STORE = DATA / "msg-store" / "v2_dirty_torn" / "store"


def test_spark_reads_salvages_and_writes(spark, tmp_path):
    form = FormatSet(CATALOGUE).by_name("v2")
    scanned = {path.name: len(scan_file(Files(), path, form).scan.records) for path in STORE.glob("*.sqs")}
    frame = spark.read.format("msgstore").load(str(STORE))
    assert {row["file"]: row["count"] for row in frame.groupBy("file").count().collect()} == scanned
    assert len(scanned) == 2
    reports = []
    for name, options in {"local": {"processes": 1}, "spark": {}}.items():
        job = plan_salvage(CATALOGUE, [STORE], tmp_path / name)
        reports.append(make_runner(CATALOGUE, name, options).salvage(job).as_json() | {"destination": ""})
    assert reports[0] == reports[1]
    found = frame.select("id", "body").dropDuplicates(["id"])
    found.write.format("msgstore").mode("append").save(str(tmp_path / "copy"))
    with msgstore.open_store(tmp_path / "copy", mode="r") as store:
        assert store.stats().messages == found.count() <= sum(scanned.values())
