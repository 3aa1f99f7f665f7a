"""Function ``session(master)``, which starts or finds a session on every kind of Spark master."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as pyspark_version
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore_spark.errors import SparkUnavailable, jvm_has_ended
from msgstore_spark.java import check_heap, find_java_home, forget_jvm, start_context

Setting = str | int | float | bool

SETTINGS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",  # failures raise exceptions; the log would only add Java stack traces
    "spark.python.unix.domain.socket.enabled": "true",  # 9 ms per Python task instead of 27 ms
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Default settings of a session; ``config`` overrides them."""
_DEFAULTS = frozenset({
    "spark.driver.memory", "spark.shuffle.compress", "spark.shuffle.spill.compress", "spark.sql.shuffle.partitions",
})  # fmt: skip
"""Settings of ours that give way to what Spark finds elsewhere."""
MIN_HEAP = 2**30
"""Spark's default for the heap of the JVM, in bytes. ``local`` masters, whose tasks all share it, get a quarter of the memory
if that is more, as other programs in Java do. With 1 GiB, ``distinct`` on 20 million ids writes temporary files."""
CONNECT_TIMEOUT_SECONDS = 10.0
"""Timeout for connections to a master or a Connect server. Spark itself waits minutes."""
log = logging.getLogger("msgstore.spark")
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files of cgroup v2 and v1 in which a container finds its limit."""
_LOCAL = re.compile(r"local(?:\[(?P<slots>\d+|\*)(?:\s*,\s*\d+)?\])?")
_MASTER = re.compile(r"(local(-cluster)?(\[.*\])?|yarn|k8s://.+|spark://.+:\d+.*)")
MASTERS = "local[*], local-cluster[2,1,1024], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://..."
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<workers>\d+)\s*,\s*(?P<cores>\d+)\s*,\s*\d+\s*\]")


def session(
    master: str | None = None, *, app_name: str = "msgstore", config: Mapping[str, Setting] | None = None
) -> SparkSession:
    """Return a Spark session on ``master``.

    Masters are ``local[*]``, ``local-cluster[2,1,1024]``, ``spark://HOST:PORT``, ``sc://HOST:PORT``, ``yarn`` and
    ``k8s://...``. Without ``master``, it is the active session or the one of ``spark-submit``, if there is one. Otherwise the
    master is ``SPARK_REMOTE`` or ``MASTER`` of the environment, or ``local[*]``. An active session is returned unchanged if it
    has the requested master and settings. ``config`` overrides the default settings: ``SETTINGS``, and on ``local`` masters a
    heap of a quarter of the memory and shuffles without compression, unless the environment (``SPARK_DRIVER_MEMORY``,
    ``PYSPARK_SUBMIT_ARGS``) or ``spark-defaults.conf`` say otherwise.

    Executors run the Python of ``PYSPARK_PYTHON``, or this Python by its path. The environment of this process is not changed
    permanently. Start only one session at a time; every thread can use it.

    ``stop()``, or the end of a ``with`` block, ends the application and its executors, even if other code uses them. On Spark
    Connect it ends only this session. The JVM runs until this process ends, and the next session reuses it with its heap.

    If the JVM has ended, such as for want of memory (``spark.driver.memory``), the next call starts another one.

    Raises SparkUnavailable if there is no Java, if the master is unknown or does not answer, if the active session has another
    master or other settings, or if the JVM runs with another heap than ``spark.driver.memory`` in ``config``.
    """
    running = active()
    found = open_session(master, app_name, config or {})
    if found is not running and not is_remote():
        _check_planner(found.sparkContext.pythonExec)
    return found


def open_session(master: str | None, app_name: str = "msgstore", config: Mapping[str, Setting] | None = None) -> SparkSession:
    """Return the same session without a check of the Python that plans queries: jobs need none."""
    settings = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (config or {}).items()}
    running = active()
    if running is not None:
        _check_same(running, master, settings)
        return running
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or "local[*]"
    if master is not None and master.startswith("sc://"):
        return _connect(master, {"spark.sql.execution.arrow.pyspark.enabled": "true"} | settings)
    return _start(master, {"spark.app.name": app_name} | settings)


_FINGERPRINT = (
    "import json, sys; print('{}.{}'.format(*sys.version_info), flush=True); "
    "from msgstore_spark.executors import fingerprint; print(json.dumps(fingerprint()))"
)


def _check_planner(python: str) -> None:
    """Log a warning if the executors' Python cannot plan queries of DataFrames here, where it gets no uploaded wheels, or not
    as this one does."""
    if python == sys.executable:
        return
    from msgstore_spark.executors import differences, fingerprint

    here, why, details = fingerprint(), "", list[str]()
    remedy = "Install the driver's packages there, or make a link to an environment that has them."
    own = os.environ.get("PYTHONPATH")
    of_spark = map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*of_spark, *([own] if own else [])])}  # as Spark makes it
    try:
        done = subprocess.run([python, "-c", _FINGERPRINT], check=False, capture_output=True, env=environment)
    except OSError:
        why, remedy = "cannot be run", "Make a link there to an environment with the driver's packages."
    else:
        version, *found = done.stdout.decode().splitlines() or [""]
        if version and version != here["Python"]:
            log.warning("PYSPARK_PYTHON: %s is %s", python, differences(here, {"Python": version})[0])
        elif done.returncode:
            why = "cannot import msgstore_spark"
            remedy = "upload_wheels() brings it for all but streams, and no dependencies: install the driver's packages there."
        elif details := differences(here, json.loads(found[-1])):
            why = "differs from the driver's Python"
    if why:
        log.warning(
            "PYSPARK_PYTHON: %s %s on this machine, where Spark plans queries of DataFrames with it. %s Jobs do not need it",
            python, why, remedy,
        )  # fmt: skip
    for line in details:
        log.warning("%s: %s", python, line)


def active() -> SparkSession | None:
    """Return the session of this thread or process; None if there is none, if it was stopped, or if its JVM has ended."""
    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return None
    except (Py4JError, ConnectionError):
        if not jvm_has_ended():
            raise
        return None
    return found if is_remote() or found.sparkContext._jsc is not None else None


def _check_same(running: SparkSession, master: str | None, settings: Mapping[str, str]) -> None:
    current = running.client._builder.endpoint if is_remote() else running.sparkContext.master  # type: ignore[attr-defined]
    requested = _connect_builder(master).endpoint if master is not None and master.startswith("sc://") else master
    differences = [] if requested in (None, current) else [f"its master is {current}, not {master}"]
    for key, value in settings.items():
        now = running.conf.get(key, None)
        if now != value:
            differences.append(f"{key} is {now or 'not set'}, not {value}")
    if differences:
        raise SparkUnavailable(f"a session is active here, and {'; '.join(differences)}. Stop it first, or use it unchanged")


# -- classic sessions ---------------------------------------------------------------------------------------------------------


def _start(master: str | None, settings: Mapping[str, str]) -> SparkSession:
    if jvm_has_ended(0):
        forget_jvm()
    address = own_address(master) if master else None
    conf = SparkConf()
    chosen = _settings_for(master, address)
    for key, value in {**SETTINGS, **{key: chosen[key] for key in chosen if not _is_given(key)}, **settings}.items():
        conf.set(key, value)
    if master is not None and not _MASTER.fullmatch(master):
        raise SparkUnavailable(f"{master!r} is no master: {MASTERS}")
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    variables = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        variables["JAVA_HOME"] = str(find_java_home())
    if address and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = address  # also for a machine whose hostname does not resolve
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # a stopped session on Spark Connect leaves it set
    from msgstore_spark.source import register  # which takes a second, and is not needed for an active session

    with _environment(variables):
        try:
            if "spark.driver.memory" in settings:
                check_heap(settings["spark.driver.memory"])
            start_context(conf, show_output="spark.log.level" in settings)
            spark = SparkSession.builder.getOrCreate()
            register(spark)  # a source that Spark finds by itself runs the driver's Python on the executors
        except Py4JJavaError as error:
            reason = error.java_exception.getMessage() or error.java_exception.getClass().getName()
        except (PySparkException, Py4JError, ValueError) as error:
            reason = str(error)
        else:
            return spark
    if (failed := SparkContext._active_spark_context) is not None:  # it would prevent the start of another one
        with contextlib.suppress(Exception):
            failed.stop()
        SparkContext._active_spark_context = None
    first = reason.strip().splitlines()[0]
    if "stopped SparkContext" in first:  # the master has ended the connection
        first += f" Does the cluster run Spark {pyspark_version}, as this program does?"
    raise SparkUnavailable(f"master {'of spark-submit' if master is None else master}: Spark does not start: {first}")


def _settings_for(master: str | None, address: str | None) -> dict[str, str]:
    if master is None:
        return {}
    chosen = {"spark.master": master} | ({"spark.driver.host": address} if address else {})
    if slots := _local_slots(master):
        chosen["spark.sql.shuffle.partitions"] = str(4 * slots)  # Spark coalesces small partitions, but splits none
        # What the jobs shuffle is mostly random ids: compression takes time, and makes them no smaller.
        chosen |= {"spark.shuffle.compress": "false", "spark.shuffle.spill.compress": "false"}
        if in_this_process(master):
            chosen["spark.driver.memory"] = f"{max(MIN_HEAP, memory() // 4) >> 20}m"
        else:
            # Spark starts no job before all executors have registered.
            chosen |= {"spark.cores.max": str(slots), "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    return chosen


def _is_given(key: str) -> bool:
    """Return True if Spark itself finds a setting that is only a default of ours: in the environment, in the arguments of
    ``spark-submit``, or in ``spark-defaults.conf``."""
    if key not in _DEFAULTS:
        return False
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if key == "spark.driver.memory":
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # the JVM runs, and its heap is what it is
            return True
        if "SPARK_DRIVER_MEMORY" in os.environ or "--driver-memory" in arguments:
            return True
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", ""), "conf"), "spark-defaults.conf")
    lines = defaults.read_text(encoding="utf-8", errors="replace").splitlines() if defaults.is_file() else []
    return f"{key}=" in arguments or any(re.match(rf"\s*{re.escape(key)}[\s=:]", line) for line in lines)


def _local_slots(master: str) -> int:
    """Return the number of concurrent tasks of a ``local`` or ``local-cluster`` master; 0 for other masters."""
    if match := _LOCAL.fullmatch(master):
        slots = match["slots"] or "1"
        return len(os.sched_getaffinity(0)) if slots == "*" else int(slots)
    match = _LOCAL_CLUSTER.fullmatch(master)
    return int(match["workers"]) * int(match["cores"]) if match else 0


def memory() -> int:
    """Return the memory in bytes that this machine has, or its container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _GROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found = min(found, int(limit.read_text()))
    return found


def in_this_process(master: str) -> bool:
    """Return True if tasks run in the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def own_address(master: str) -> str | None:
    """Return this machine's address on the route to the master; None if it cannot be determined without Spark.

    Raises SparkUnavailable if no master listens at a ``spark://`` address.
    """
    if _local_slots(master):
        return "127.0.0.1"
    refused = []
    for host, port in re.findall(r"([^,/:\s]+):(\d+)", master) if master.startswith("spark://") else ():
        try:
            with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECONDS) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            refused.append(f"{host}:{port}: {error.strerror or error}")
    if refused:
        raise SparkUnavailable(
            f"master {master!r} does not answer ({'; '.join(refused)}). Start one: "
            f"spark-class org.apache.spark.deploy.master.Master, or use local[*], which needs no master"
        )
    return None


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


# -- Spark Connect ------------------------------------------------------------------------------------------------------------


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session on the server at ``url``, such as ``sc://HOST:PORT/;use_ssl=true;token=...``. Needs no Java.

    Raises SparkUnavailable if no server answers within ten seconds; PySpark itself would retry for ten minutes.
    """
    builder = _connect_builder(url)
    import grpc  # the extra is installed: _connect_builder would have raised

    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_SECONDS)
        except grpc.FutureTimeoutError:
            raise SparkUnavailable(
                f"no Spark Connect server answers at {builder.endpoint} within {CONNECT_TIMEOUT_SECONDS:g} s. Check that it "
                "runs and uses this port, or start one: spark-class org.apache.spark.deploy.SparkSubmit "
                "--class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal"
            ) from None
    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
        for key, value in settings.items():
            spark.conf.set(key, value)
        _ = spark.version  # the first request to the server
    except (PySparkException, grpc.RpcError) as error:
        raise SparkUnavailable(f"Spark Connect at {builder.endpoint}: {str(error).strip().splitlines()[0]}") from None
    return spark


def _connect_builder(url: str) -> Any:
    try:
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except (ImportError, PySparkException) as error:
        raise SparkUnavailable(
            f"{url}: packages for Spark Connect are not installed ({error}). Try: pip install 'msgstore-spark[connect]' (in a "
            "checkout: './pipeline[connect]')"
        ) from None
    try:
        return DefaultChannelBuilder(url)
    except (PySparkException, ValueError) as error:
        raise SparkUnavailable(f"{url}: not a URL of Spark Connect: {error}") from None
