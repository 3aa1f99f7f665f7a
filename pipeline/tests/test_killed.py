"""Executors and whole jobs that are killed in the middle of a write: whole or not there, and right when it is run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import msgstore
from killing import Job, job, needs_proc, slow_disk
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage
from test_writer import content, expected, rows, save

CLUSTER = "local-cluster[2,1,1024]"
CATALOGUE = msgstore.load_catalogue()
COUNT = 60_000

WRITES = """
    import sys
    from msgstore_spark import session
    master, path, count, *_ = sys.argv[1:]
    with session(master, config={"spark.task.maxFailures": 8, "spark.executor.memory": "512m"}) as spark:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
        columns = ["unhex(lpad(hex(id), 32, '0')) as id", "encode(repeat(string(id), 20), 'utf-8') as body"]
        spark.range(0, int(count), 1, 4).selectExpr(*columns).write.format("msgstore").mode("append").save(path)
        print("written")
"""
SALVAGES = """
    import sys
    from pathlib import Path
    import attrs, msgstore
    from msgstore.jobs.runner import make_runner
    from msgstore.jobs.salvage import plan_salvage
    from msgstore_spark import session
    master, path, _, source = sys.argv[1:]
    catalogue = msgstore.load_catalogue()
    with session(master, config={"spark.task.maxFailures": 8, "spark.executor.memory": "512m"}):
        job = attrs.evolve(plan_salvage(catalogue, [Path(source)], Path(path)), task_size=2**20)
        print(make_runner(catalogue, "spark", {}).salvage(job).messages)
"""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A store with a body for each number, in some segments; one of these was cut off within its last record."""
    source = tmp_path_factory.mktemp("damaged") / "store"
    with msgstore.open_store(source, file_size_limit=2**20) as store, store.client() as client:
        client.write_many((msg_id, body) for msg_id, (body, _) in expected(COUNT).items())
    cut = source / "3.sqs"
    cut.write_bytes(cut.read_bytes()[:-1])
    return source


def salvaged(source: Path, destination: Path) -> dict[bytes, tuple[bytes, int]]:
    """What the other engine finds there."""
    plan = plan_salvage(CATALOGUE, [source], destination)
    assert make_runner(CATALOGUE, "local", {"processes": 1}).salvage(plan).messages == COUNT - 1
    return content(destination)


@needs_proc
@pytest.mark.parametrize("victim", [Job.kill_executor, Job.kill_python])
def test_an_executor_that_writes_rows(tmp_path, victim):
    """Spark begins its tasks again elsewhere, and the store has every message once."""
    store, env = tmp_path / "out" / "store", slow_disk(tmp_path / "site", 0.5)
    store.parent.mkdir()
    with job(WRITES, CLUSTER, str(store), str(COUNT), destination=store, env=env) as writing:
        writing.wait_until_it_writes()
        victim(writing)
        assert writing.ends() == "written"
    assert content(store) == expected(COUNT)
    assert list(store.parent.iterdir()) == [store]


@needs_proc
def test_an_executor_in_a_salvage(tmp_path, damaged):
    """What it had examined for others is lost with it, and what it had written is not taken."""
    store, env = tmp_path / "out" / "store", slow_disk(tmp_path / "site", 0.5)
    store.parent.mkdir()
    with job(SALVAGES, CLUSTER, str(store), "", str(damaged), destination=store, env=env) as salvaging:
        salvaging.wait_until_it_writes()
        salvaging.kill_executor()
        assert salvaging.ends() == str(COUNT - 1)
    assert content(store) == salvaged(damaged, tmp_path / "other")
    assert list(store.parent.iterdir()) == [store]


@needs_proc
@pytest.mark.parametrize("program", [WRITES, SALVAGES], ids=["rows", "a salvage"])
def test_a_whole_job(spark, tmp_path, damaged, program):
    """Nothing is there; while it lives nobody else writes there; then the next job clears up and makes it."""
    store, env = tmp_path / "out" / "store", slow_disk(tmp_path / "site", 2)
    store.parent.mkdir()
    with job(program, "local[2]", str(store), str(COUNT), str(damaged), destination=store, env=env) as killed:
        killed.wait_until_it_writes()
        with pytest.raises(PySparkException, match="is writing a store there"):
            save(rows(spark, 10), store)
        killed.kill()
        assert not store.exists()
        assert list(store.parent.iterdir())
        if program == WRITES:
            save(rows(spark, 5000), store)
        else:
            make_runner(CATALOGUE, "spark", {}).salvage(plan_salvage(CATALOGUE, [damaged], store))
    assert content(store) == (expected(5000) if program == WRITES else salvaged(damaged, tmp_path / "other"))
    assert list(store.parent.iterdir()) == [store]
