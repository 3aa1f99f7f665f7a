"""One function for every kind of Spark: ``session(master)``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore_spark import connecting, masters
from msgstore_spark.errors import SparkUnavailable
from msgstore_spark.gateway import start_context
from msgstore_spark.java import find_java_home

Setting = str | int | float | bool

SETTINGS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",  # what fails is raised; what is logged beside it are the stacks of Java
    "spark.python.unix.domain.socket.enabled": "true",  # 9 ms a Python task, not 27
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""What a session of ours has unless ``config`` says otherwise."""


def session(
    master: str | None = None, *, app_name: str = "msgstore", config: Mapping[str, Setting] | None = None
) -> SparkSession:
    """A Spark session: ``local[*]``, ``local-cluster[2,1,1024]``, ``spark://HOST:PORT``, ``sc://HOST:PORT``, ``yarn``, ``k8s://...``.

    A session that is active is returned as it is, unless another master, or a setting that it does not have, is asked for.
    Without ``master`` and without an active session: that of ``spark-submit``, if it has started this program; else what
    ``SPARK_REMOTE`` or ``MASTER`` say; else ``local[*]``. ``config`` goes over our settings (``SETTINGS``).

    Executors run the Python of ``PYSPARK_PYTHON``, or else this one by its path. Nothing in the environment of this process
    is changed for good. Only one session is to be started at a time; sessions can be used on every thread.

    ``stop()``, or the end of a ``with`` block, ends the application with its executors, whoever else uses it; on Spark
    Connect it ends this session on the server, which goes on. The JVM stays until this process ends, and serves the next one.

    Raises SparkUnavailable: no Java, no such master, nobody answers there, or the session that is active is another one.
    """
    settings = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (config or {}).items()}
    running = active()
    if running is not None:
        _check_same(running, master, settings)
        return running
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or "local[*]"
    if master is not None and master.startswith("sc://"):
        return connecting.connect(master, {"spark.sql.execution.arrow.pyspark.enabled": "true"} | settings)
    return _start(master, {"spark.app.name": app_name} | settings)


def active() -> SparkSession | None:
    """The session of this thread, or of this process; None if there is none, or it was stopped."""
    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return None
    return found if is_remote() or found.sparkContext._jsc is not None else None


def _check_same(running: SparkSession, master: str | None, settings: Mapping[str, str]) -> None:
    has = connecting.url(running) if is_remote() else running.sparkContext.master
    asked = connecting.endpoint(master) if master is not None and master.startswith("sc://") else master
    other = [] if asked in (None, has) else [f"its master is {has}, not {master}"]
    for key, value in settings.items():
        now = running.conf.get(key, None)
        if now != value:
            other.append(f"{key} is {now or 'not set'}, not {value}")
    if other:
        raise SparkUnavailable(f"a session is active here, and {'; '.join(other)}. Stop it first, or take it as it is")


def _start(master: str | None, settings: Mapping[str, str]) -> SparkSession:
    conf = SparkConf()
    for key, value in {**SETTINGS, **_of_master(master), **settings}.items():
        conf.set(key, value)
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # a session on Spark Connect that was stopped leaves it behind
    with _environment(_variables(master, settings)):
        try:
            start_context(conf, aloud="spark.log.level" in settings)
            return SparkSession.builder.getOrCreate()
        except Py4JJavaError as error:
            reason = error.java_exception.getMessage() or error.java_exception.getClass().getName()
        except (PySparkException, Py4JError, ValueError) as error:
            reason = str(error)
    _forget()
    first = reason.strip().splitlines()[0]
    raise SparkUnavailable(f"master {master or 'of spark-submit'}: Spark does not start: {first}")


def _of_master(master: str | None) -> dict[str, str]:
    if master is None:
        return {}
    masters.check(master)
    chosen = {"spark.master": master}
    if address := masters.own_address(master):
        chosen["spark.driver.host"] = address
    if slots := masters.local_slots(master):
        chosen["spark.sql.shuffle.partitions"] = str(4 * slots)  # Spark joins small ones, and never splits large ones
        if not masters.in_this_process(master):
            # No job before all executors are there.
            chosen |= {"spark.cores.max": str(slots), "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    return chosen


def _variables(master: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """What the JVM and its executors are to find in their environment."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    found = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        found["JAVA_HOME"] = str(find_java_home())
    if master and "SPARK_LOCAL_IP" not in os.environ and (masters.local_slots(master) or not masters.has_a_name()):
        found["SPARK_LOCAL_IP"] = masters.own_address(master) or "127.0.0.1"
    return found


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _forget() -> None:
    """A context that was begun and failed is in the way of the next one."""
    begun = SparkContext._active_spark_context
    if begun is not None:
        with contextlib.suppress(Exception):
            begun.stop()
        SparkContext._active_spark_context = None
