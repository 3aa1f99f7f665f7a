"""Real clusters for tests, from the packages that pip installed: child processes that are killed at the end.

A process has one JVM, and the test process has its own. A test of another kind of session runs a program in a separate process,
by :func:`run`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark

from msgstore_spark.java import find_java_home

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_USUAL = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
START_SECONDS = 120.0


def path_without_java(directory: Path) -> str:
    """Return a PATH with all programs of this machine except those of a JDK."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = directory / program.name
            if not program.name.startswith("java") and not os.path.lexists(link):
                link.symlink_to(program)
    assert shutil.which("java", path=str(directory)) is None
    return str(directory)


def run(
    program: str, *arguments: str, env: Mapping[str, str] | None = None, before: Sequence[str] = (), errors: bool = False
) -> str:
    """Run ``program`` in a new process of this Python, and return its output. ``before``: a command that starts Python.

    ``errors``: with standard error. Raises AssertionError if it fails, TimeoutExpired after five minutes.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # not -c: then PySpark exits if a package is missing
        file.write(textwrap.dedent(program))
        file.flush()
        return _output([*before, sys.executable, file.name, *arguments], env or {}, errors=errors)


def submit(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a job by ``spark-submit``, and return its output."""
    command = [str(SPARK_CLASS), "org.apache.spark.deploy.SparkSubmit", *arguments]
    return _output(command, _USUAL | {"JAVA_HOME": str(find_java_home()), **(env or {})})


def _output(command: Sequence[str], env: Mapping[str, str], *, errors: bool = False) -> str:
    # Workers of PySpark that are killed at the end may write to standard error.
    with tempfile.TemporaryFile() as log:
        with _process(command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else log) as child:
            output, _ = child.communicate(timeout=300)
        log.seek(0)
        assert child.returncode == 0, (output + log.read()).decode()
    return output.decode()


@contextlib.contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[str]:
    """Start a standalone master with ``workers`` of one core and 1 GiB each, and yield its ``spark://`` URL."""
    with contextlib.ExitStack() as stack:
        flags = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = ["org.apache.spark.deploy.master.Master", *flags]
        url = stack.enter_context(_service(directory / "master.log", master, r"Starting Spark master at (spark://\S+)"))
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1G", "--work-dir", str(directory / f"worker-{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", *flags, *size, url]
            stack.enter_context(_service(directory / f"worker-{number}.log", worker, "(Successfully registered with master)"))
        yield url


@contextlib.contextmanager
def connect_server(directory: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a Spark Connect server, and yield its ``sc://`` URL."""
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    flags = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]", *flags]
    command = ["org.apache.spark.deploy.SparkSubmit", *server, "spark-internal"]
    with _service(directory / "connect.log", command, r"Spark Connect server started at: .*:(\d+)", env) as port:
        yield f"sc://localhost:{port}"


@contextlib.contextmanager
def _service(log: Path, command: Sequence[str], pattern: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a service, and yield the group of ``pattern`` in its log when it is there."""
    usual = _USUAL | {"JAVA_HOME": str(find_java_home()), **(env or {})}
    with log.open("wb") as output, _process([str(SPARK_CLASS), *command], usual, stdout=output, stderr=output):
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            assert time.monotonic() < deadline, f"{log.name} has no {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.2)
        yield found[1]


@contextlib.contextmanager
def _process(command: Sequence[str], env: Mapping[str, str], *, stdout: Any, stderr: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child, and kill it at the end with everything that it has started; on Linux also if this process is killed."""
    child = subprocess.Popen(
        command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        start_new_session=True, preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
    )  # fmt: skip
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)
        if child.stdout is not None:
            child.stdout.close()
