"""Real executors in processes of their own: they find this Python, say which plugins they have, read and salvage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clusters
import msgstore
from msgstore.scan import describe
from msgstore_spark import check_executors
from msgstore_spark.fingerprint import fingerprint

WORK = """
    import json, os, sys
    from pathlib import Path
    import msgstore
    from msgstore.jobs.runner import make_runner
    from msgstore.jobs.salvage import plan_salvage
    from msgstore_spark import check_executors, session

    master, config, store, rescued = sys.argv[1:]
    with session(master, config=json.loads(config)) as spark:
        answered = [check_executors(spark), check_executors(spark)]
        found = spark.read.format("msgstore").option("taskSize", "16kB").load(store)  # nobody has registered it
        rows = found.selectExpr("lower(hex(id))", "type", "string(body)", "unix_micros(time)", "actor").collect()
        told = []
        catalogue = msgstore.load_catalogue()
        os.chdir(Path(store).parent)  # a job's paths may be relative, wherever executors run
        job = plan_salvage(catalogue, [Path(Path(store).name)], Path(rescued))
        report = make_runner(catalogue, "spark", {}).salvage(job, lambda done, known: told.append((done, known)))
        print(json.dumps({
            "answered": answered, "columns": found.columns, "rows": [list(row) for row in rows],
            "report": report.as_json(), "told": told[-1:],
        }))
"""
SMALL = '{"spark.executor.memory": "512m"}'


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A store of a third party's records in several segments."""
    path = tmp_path_factory.mktemp("audited") / "store"
    form = {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}
    with msgstore.open_store(path, record="audit", format=form, file_size_limit=8000) as store, store.client() as client:
        for n in range(1000):
            client.write(n.to_bytes(16), b"message %d" % n)
            if n % 50 == 0:
                store.flush()
    assert len(list(path.glob("*.sqs"))) > 4
    return path


def truth(store: Path) -> list[list[Any]]:
    """Of each message id, type, body, time in microseconds, and actor, as the store itself has them."""
    rows = []
    with msgstore.open_store(store, mode="r") as opened:
        for entry in opened.entries():
            described = describe(opened.record(entry))
            assert described.record == "audit"
            nanoseconds, actor = described.values
            rows.append([entry.msg_id.hex(), 200, opened.stored_body(entry).decode(), nanoseconds // 1000, actor])
    return sorted(rows)


def works(master: str, config: str, executors: int, store: Path, rescued: Path) -> None:
    """The columns of a third party's records are there with what was written; a salvage takes all, and says how far it is."""
    (said,) = clusters.run(WORK, master, config, str(store), str(rescued)).splitlines()
    found = json.loads(said)
    assert found["answered"] == [executors, executors]
    assert found["columns"] == ["store", "file", "format", "offset", "size", "type", "id", "body", "time", "actor"]
    written = truth(store)
    assert {(row[1], row[4]) for row in written} == {(200, "billing")}
    assert len(written) == 1000
    assert sorted(found["rows"]) == written
    assert found["report"]["messages"] == 1000
    assert truth(rescued) == written
    assert [path.name for path in rescued.parent.iterdir()] == [rescued.name]
    for done, known in found["told"]:
        assert 0 < done == known


def test_local(spark):
    assert check_executors(spark) == 1


def test_the_fingerprint_names_what_strangers_brought():
    found = fingerprint()
    assert found["record audit of v2"].startswith("acme-audit-record 1.0.0 (contract ")
    assert found["msgstore-spark"] == "msgstore-spark 0.1.0"
    assert found["pyarrow"] == "pyarrow 18 or newer"


def test_local_cluster(audited, tmp_path):
    works("local-cluster[2,1,1024]", SMALL, 2, audited, tmp_path / "rescued")


def test_standalone_with_two_workers(standalone, audited, tmp_path):
    works(standalone, SMALL, 2, audited, tmp_path / "rescued")


def test_connect(connect_server, audited, tmp_path):
    """The format is found by the Python of the server, which has it; how one that has not gets it: test_shipping."""
    works(connect_server, "{}", 1, audited, tmp_path / "rescued")


def test_connect_and_then_classic_in_one_process(connect_server):
    program = """
        import sys
        from msgstore_spark import SparkUnavailable, session
        with session(sys.argv[1]) as spark:
            assert session() is spark
            assert session(sys.argv[1]) is spark
            try:
                session("local[2]")
            except SparkUnavailable as error:
                print(error)
            print(spark.range(10).count())
        with session("local[2]") as spark:
            print(spark.sparkContext.master, spark.range(10).count())
        with session(sys.argv[1]) as spark:
            print(spark.range(10).count())
    """
    said = clusters.run(program, connect_server).splitlines()
    assert "a session is active here, and its master is localhost:" in said[0]
    assert said[1:] == ["10", "local[2] 10", "10"]


def test_a_cluster_without_workers(tmp_path):
    program = """
        import sys
        from msgstore_spark import SparkUnavailable, check_executors, fingerprint, session
        fingerprint.EXECUTOR_TIMEOUT_SECONDS = 1
        with session(sys.argv[1]) as spark:
            try:
                check_executors(spark)
            except SparkUnavailable as error:
                print(error)
    """
    with clusters.standalone(tmp_path, workers=0) as url:
        assert f"{url}: no executor started within 1 s. Check that it has workers" in clusters.run(program, url)
