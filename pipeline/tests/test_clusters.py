"""Real executors in separate processes: they use this Python, have its plugins, read a store, and salvage it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clusters
import msgstore
from msgstore.scan import describe
from msgstore_spark import check_executors
from msgstore_spark.executors import fingerprint

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
        found = spark.read.format("msgstore").option("taskSize", "16kB").load(store)  # without registration
        rows = found.selectExpr("lower(hex(id))", "type", "string(body)", "unix_micros(time)", "actor").collect()
        progress = []
        catalogue = msgstore.load_catalogue()
        os.chdir(Path(store).parent)  # a job's paths may be relative, wherever executors run
        job = plan_salvage(catalogue, [Path(Path(store).name)], Path(rescued))
        report = make_runner(catalogue, "spark", {}).salvage(job, lambda done, known: progress.append((done, known)))
        print(json.dumps({
            "answered": answered, "columns": found.columns, "rows": [list(row) for row in rows],
            "messages": report.messages, "progress": progress[-1:],
        }))
"""
SMALL = '{"spark.executor.memory": "512m"}'


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Store with a third party's records in several segments, and its rows: id, type, body, time in microseconds, actor."""
    path = tmp_path_factory.mktemp("audited") / "store"
    form = {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}
    with msgstore.open_store(path, record="audit", format=form, file_size_limit=8000) as store, store.client() as client:
        for n in range(1000):
            client.write(n.to_bytes(16), b"message %d" % n)
            if n % 50 == 0:
                store.flush()
    assert len(list(path.glob("*.sqs"))) > 4
    return path, read(path)


def read(store: Path) -> list[list[Any]]:
    rows = []
    with msgstore.open_store(store, mode="r") as opened:
        for entry in opened.entries():
            nanoseconds, actor = describe(opened.record(entry)).values
            rows.append([entry.msg_id.hex(), 200, opened.stored_body(entry).decode(), nanoseconds // 1000, actor])
    return sorted(rows)


@pytest.mark.parametrize(
    ("master", "config", "executors"),
    [("local-cluster[2,1,1024]", SMALL, 2), ("standalone", SMALL, 2), ("connect_server", "{}", 1)],
)
def test_executors_read_and_salvage(request, audited, tmp_path, master, config, executors):
    """All messages, with the columns of the third party's record type."""
    store, written = audited
    url = master if "[" in master else request.getfixturevalue(master)
    (line,) = clusters.run(WORK, url, config, str(store), str(tmp_path / "rescued")).splitlines()
    found = json.loads(line)
    assert found["answered"] == [executors, executors]
    assert found["columns"] == ["store", "file", "format", "offset", "size", "type", "id", "body", "time", "actor"]
    assert {row[4] for row in written} == {"billing"}
    assert len(written) == found["messages"] == 1000
    assert sorted(found["rows"]) == read(tmp_path / "rescued") == written
    assert [path.name for path in tmp_path.iterdir()] == ["rescued"]
    for done, known in found["progress"]:
        assert 0 < done == known


def test_fingerprint_names_third_parties(spark):
    assert check_executors(spark) == 1
    found = fingerprint()
    assert found["record audit of v2"].startswith("acme-audit-record 1.0.0 (contract ")
    assert (found["msgstore-spark"], found["pyarrow"]) == ("msgstore-spark 0.1.0", "pyarrow 18 or newer")


def test_connect_and_classic_alternate_in_process(connect_server):
    program = """
        import sys
        from msgstore_spark import SparkUnavailable, session
        for master in (sys.argv[1], "local[2]", sys.argv[1]):
            with session(master) as spark:
                assert session() is session(master) is spark
                try:
                    session("local[3]")
                except SparkUnavailable as error:
                    print(spark.range(10).count(), error)
    """
    lines = clusters.run(program, connect_server).splitlines()
    said = [line.removeprefix("10 a session is active here, and its master is ")[:9] for line in lines]
    assert said == ["localhost", "local[2],", "localhost"]


def test_cluster_without_workers_is_refused(tmp_path):
    program = """
        import sys
        from msgstore_spark import SparkUnavailable, check_executors, executors, session
        executors.EXECUTOR_TIMEOUT_SECONDS = 1
        with session(sys.argv[1]) as spark:
            try:
                check_executors(spark)
            except SparkUnavailable as error:
                print(error)
    """
    with clusters.standalone(tmp_path, workers=0) as url:
        assert f"{url}: no executor started within 1 s. Check that it has workers" in clusters.run(program, url)
