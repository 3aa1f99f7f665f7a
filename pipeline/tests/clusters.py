"""Real clusters for tests: started from the packages that pip installed, as child processes, and gone at the end.

A process has one JVM, and the test process has its own: whoever wants another kind of session runs a program in a process of
its own, by :func:`run`.
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
PATIENCE = 120.0
"""Seconds for anything to start."""


def path_without_java(directory: Path) -> str:
    """A PATH with every program of this machine's but those of a JDK."""
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
    """What ``program`` prints, with ``errors`` on either stream, in a fresh process of this Python (started by ``before``).

    AssertionError if it fails, TimeoutExpired after five minutes; what it started is gone either way.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "program.py")
        file.write_text(textwrap.dedent(program), encoding="utf-8")
        return _printed([*before, sys.executable, str(file), *arguments], env or {}, errors=errors)


def submit(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a job prints under ``spark-submit``."""
    command = [str(SPARK_CLASS), "org.apache.spark.deploy.SparkSubmit", *arguments]
    return _printed(command, _USUAL | {"JAVA_HOME": str(find_java_home()), **(env or {})})


def _printed(command: Sequence[str], env: Mapping[str, str], *, errors: bool = False) -> str:
    # Workers of PySpark that are killed at the end may say so on the error stream.
    with tempfile.TemporaryFile() as said:
        with _process(command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else said) as child:
            printed, _ = child.communicate(timeout=300)
        said.seek(0)
        assert child.returncode == 0, (printed + said.read()).decode()
    return printed.decode()


@contextlib.contextmanager
def standalone(directory: Path, workers: int = 2, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """A standalone master with ``workers`` of one core and 1 GiB each: its ``spark://`` URL."""
    with contextlib.ExitStack() as stack:
        flags = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = directory / "master.log"
        stack.enter_context(_service(log, ["org.apache.spark.deploy.master.Master", *flags], env))
        url = _said(log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1G", "--work-dir", str(directory / f"worker-{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", *flags, *size, url]
            stack.enter_context(_service(directory / f"worker-{number}.log", worker, env))
        for number in range(workers):
            _said(directory / f"worker-{number}.log", "(Successfully registered with master)")
        yield url


@contextlib.contextmanager
def connect_server(directory: Path, master: str = "local[2]", env: Mapping[str, str] | None = None) -> Iterator[str]:
    """A Spark Connect server: its ``sc://`` URL."""
    log = directory / "connect.log"
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    flags = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master, *flags]
    with _service(log, ["org.apache.spark.deploy.SparkSubmit", *server, "spark-internal"], env):
        port = _said(log, r"Spark Connect server started at: .*:(\d+)")
        yield f"sc://localhost:{port}"


@contextlib.contextmanager
def _service(log: Path, command: Sequence[str], env: Mapping[str, str] | None) -> Iterator[subprocess.Popen[bytes]]:
    usual = _USUAL | {"JAVA_HOME": str(find_java_home()), **(env or {})}
    with log.open("wb") as output, _process([str(SPARK_CLASS), *command], usual, stdout=output, stderr=output) as child:
        yield child


def _die_with_the_parent() -> None:
    """Linux: also if the test process is killed, and ends nothing itself."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def _process(command: Sequence[str], env: Mapping[str, str], *, stdout: Any, stderr: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child with everything that it starts: the whole group is killed at the end."""
    child = subprocess.Popen(
        command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        start_new_session=True, preexec_fn=_die_with_the_parent,
    )  # fmt: skip
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)
        if child.stdout is not None:
            child.stdout.close()


def _said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace") if log.exists() else ""):
            return found[1]
        time.sleep(0.2)
    raise AssertionError(f"{log.name} does not say {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")
