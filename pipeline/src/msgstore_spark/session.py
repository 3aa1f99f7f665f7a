"""Function ``session(master)``, which starts or finds a session on every kind of Spark master."""

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
    "spark.log.level": "FATAL",  # failures raise exceptions; the log would only add Java stack traces
    "spark.python.unix.domain.socket.enabled": "true",  # 9 ms per Python task instead of 27 ms
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Default settings of a session; ``config`` overrides them."""


def session(
    master: str | None = None, *, app_name: str = "msgstore", config: Mapping[str, Setting] | None = None
) -> SparkSession:
    """Return a Spark session on ``master``.

    Masters are ``local[*]``, ``local-cluster[2,1,1024]``, ``spark://HOST:PORT``, ``sc://HOST:PORT``, ``yarn`` and
    ``k8s://...``. Without ``master``, it is the active session or the one of ``spark-submit``, if there is one. Otherwise the
    master is ``SPARK_REMOTE`` or ``MASTER`` of the environment, or ``local[*]``. An active session is returned unchanged if it
    has the requested master and settings. ``config`` overrides the default settings (``SETTINGS``).

    Executors run the Python of ``PYSPARK_PYTHON``, or this Python by its path. The environment of this process is not changed
    permanently. Start only one session at a time; every thread can use it.

    ``stop()``, or the end of a ``with`` block, ends the application and its executors, even if other code uses them. On Spark
    Connect it ends only this session. The JVM runs until this process ends, and the next session reuses it.

    Raises SparkUnavailable if there is no Java, if the master is unknown or does not answer, or if the active session has
    another master or other settings.
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
    """Return the session of this thread or process; None if there is none, or if it was stopped."""
    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return None
    return found if is_remote() or found.sparkContext._jsc is not None else None


def _check_same(running: SparkSession, master: str | None, settings: Mapping[str, str]) -> None:
    current = connecting.url(running) if is_remote() else running.sparkContext.master
    requested = connecting.endpoint(master) if master is not None and master.startswith("sc://") else master
    differences = [] if requested in (None, current) else [f"its master is {current}, not {master}"]
    for key, value in settings.items():
        now = running.conf.get(key, None)
        if now != value:
            differences.append(f"{key} is {now or 'not set'}, not {value}")
    if differences:
        raise SparkUnavailable(f"a session is active here, and {'; '.join(differences)}. Stop it first, or use it unchanged")


def _start(master: str | None, settings: Mapping[str, str]) -> SparkSession:
    conf = SparkConf()
    for key, value in {**SETTINGS, **_settings_for(master), **settings}.items():
        conf.set(key, value)
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # a stopped session on Spark Connect leaves it set
    with _environment(_variables(master, settings)):
        try:
            start_context(conf, show_output="spark.log.level" in settings)
            return SparkSession.builder.getOrCreate()
        except Py4JJavaError as error:
            reason = error.java_exception.getMessage() or error.java_exception.getClass().getName()
        except (PySparkException, Py4JError, ValueError) as error:
            reason = str(error)
    _discard_failed_context()
    first = reason.strip().splitlines()[0]
    raise SparkUnavailable(f"master {master or 'of spark-submit'}: Spark does not start: {first}")


def _settings_for(master: str | None) -> dict[str, str]:
    if master is None:
        return {}
    masters.check(master)
    chosen = {"spark.master": master}
    if address := masters.own_address(master):
        chosen["spark.driver.host"] = address
    if slots := masters.local_slots(master):
        chosen["spark.sql.shuffle.partitions"] = str(4 * slots)  # Spark coalesces small partitions, but splits none
        if not masters.in_this_process(master):
            # Spark starts no job before all executors have registered.
            chosen |= {"spark.cores.max": str(slots), "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    return chosen


def _variables(master: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for the JVM and its executors."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    found = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        found["JAVA_HOME"] = str(find_java_home())
    if master and "SPARK_LOCAL_IP" not in os.environ and (masters.local_slots(master) or not masters.is_hostname_resolvable()):
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


def _discard_failed_context() -> None:
    """Stop and remove a context whose start failed: it would prevent the start of another one."""
    failed = SparkContext._active_spark_context
    if failed is not None:
        with contextlib.suppress(Exception):
            failed.stop()
        SparkContext._active_spark_context = None
