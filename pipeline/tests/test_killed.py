"""Executors and jobs that are killed during a write: the store is complete or does not exist, and the job can be repeated."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import msgstore
from msgstore.jobs.runner import make_runner
from msgstore.jobs.salvage import plan_salvage
from msgstore_spark.java import find_java_home
from test_writer import content, expected, rows, save

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find executors")
CATALOGUE = msgstore.load_catalogue()
COUNT = 60_000
START_SECONDS = 240.0
"""Time for a job to begin to write on a busy machine."""
PROGRAM = """
    import sys
    from pathlib import Path
    import attrs, msgstore
    from msgstore.jobs.runner import make_runner
    from msgstore.jobs.salvage import plan_salvage
    from msgstore_spark import session
    master, path, count, *sources = sys.argv[1:]
    with session(master, config={"spark.task.maxFailures": 8, "spark.executor.memory": "512m"}) as spark:
        if sources:
            catalogue = msgstore.load_catalogue()
            job = attrs.evolve(plan_salvage(catalogue, list(map(Path, sources)), Path(path)), task_size=2**20)
            print(make_runner(catalogue, "spark", {}).salvage(job).messages)
        else:
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
            columns = ["unhex(lpad(hex(id), 32, '0')) as id", "encode(repeat(string(id), 20), 'utf-8') as body"]
            spark.range(0, int(count), 1, 4).selectExpr(*columns).write.format("msgstore").mode("append").save(path)
            print(count)
"""
SLOW_DISK = """
    import time
    from pathlib import Path
    from msgstore.files import Files

    plain, slow = Files.pwrite, Path(__file__).with_name("slow")

    def pwrite(self, fd, data, offset):
        time.sleep({seconds} if len(data) > 20_000 and slow.exists() else 0)
        plain(self, fd, data, offset)

    Files.pwrite = pwrite
"""
"""``sitecustomize`` module: larger writes are slow while a file ``slow`` is beside it, so a job can be killed during them."""


@contextlib.contextmanager
def job(store: Path, master: str, *sources: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Start a job that creates ``store``, and yield it when it writes. At the end, everything that it started is killed."""
    store.parent.mkdir()
    site = store.parent.with_name("site")
    site.mkdir()
    (site / "sitecustomize.py").write_text(textwrap.dedent(SLOW_DISK.format(seconds=seconds)))
    (site / "slow").touch()
    env = os.environ | {"JAVA_HOME": str(find_java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), master, str(store), str(COUNT), *map(str, sources)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, start_new_session=True) as child,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while not list(store.parent.glob(f".{store.name}.msgstore/*/parts/*/*.sqs")):
                errors.seek(0)
                assert child.poll() is None and time.monotonic() < deadline, errors.read()[-3000:]  # noqa: PT018
                time.sleep(0.05)
            assert not store.exists()
            yield child
        finally:
            for pid in descendants(child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.kill()


def descendants(pid: int, *arguments: str) -> list[int]:
    """Return the processes that a process has started, directly or not, and whose command line has all ``arguments``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                line = path.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
                found += [int(path.parent.name)] * all(argument in line for argument in arguments)
                found += descendants(int(path.parent.name), *arguments)
    return found


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Store with several segments, one of which is cut within its last record, and what the runner ``local`` salvages of it."""
    source = tmp_path_factory.mktemp("damaged") / "store"
    with msgstore.open_store(source, file_size_limit=2**20) as store, store.client() as client:
        client.write_many((msg_id, body) for msg_id, (body, _) in expected(COUNT).items())
    cut = source / "3.sqs"
    cut.write_bytes(cut.read_bytes()[:-1])
    salvaged = source.with_name("salvaged")
    assert (
        make_runner(CATALOGUE, "local", {"processes": 1}).salvage(plan_salvage(CATALOGUE, [source], salvaged)).messages
        == COUNT - 1
    )
    return source, content(salvaged)


@pytest.mark.parametrize("victim", ["executor", "worker", "executor of a salvage"])
def test_tasks_of_killed_process_are_repeated(tmp_path, damaged, victim):
    source, salvaged = damaged
    store, sources = tmp_path / "out" / "store", [source] if "salvage" in victim else []
    with job(store, "local-cluster[2,1,1024]", *sources, seconds=0.5) as writing:
        executor = descendants(writing.pid, "CoarseGrainedExecutorBackend", "--executor-id 0")[-1]
        os.kill(descendants(executor, "pyspark")[-1] if victim == "worker" else executor, signal.SIGKILL)
        (tmp_path / "site/slow").unlink()
        output, _ = writing.communicate()
        assert output.splitlines()[-1:] == [str(COUNT - len(sources))]
    assert content(store) == (salvaged if sources else expected(COUNT))
    assert list(store.parent.iterdir()) == [store]


def test_killed_job_can_be_repeated(spark, tmp_path):
    """Nothing exists at the destination. Another job is refused until the first one is killed."""
    store = tmp_path / "out" / "store"
    with job(store, "local[2]", seconds=2) as killed:
        with pytest.raises(PySparkException, match="is writing there, in"):
            save(rows(spark, 10), store)
        os.kill(descendants(killed.pid, "org.apache.spark")[-1], signal.SIGKILL)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # keeps its number, unlike wait()
        assert not store.exists()
        assert list(store.parent.iterdir())
        save(rows(spark, 5000), store)
    assert content(store) == expected(5000)
    assert list(store.parent.iterdir()) == [store]
