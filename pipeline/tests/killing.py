"""Jobs in processes of their own, which tests kill: executors, the Pythons of executors, and everything together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from msgstore_spark.java import find_java_home

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find executors")

PATIENCE = 240.0
"""Seconds for a job to begin to write, on a machine that has much else to do."""
SLOW_DISK = """
    import time
    from msgstore.files import Files

    plain = Files.pwrite

    def pwrite(self, fd, data, offset):
        time.sleep({seconds} if len(data) > 20_000 else 0)
        plain(self, fd, data, offset)

    Files.pwrite = pwrite
"""
"""What Python imports before anything else, so that a job is met in the middle of its writing."""


def slow_disk(directory: Path, seconds: float) -> dict[str, str]:
    """An environment in which each larger write takes so much longer."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(textwrap.dedent(SLOW_DISK.format(seconds=seconds)))
    return {"PYTHONPATH": str(directory)}


class Job:
    """A program that is under way. What it has started goes with it."""

    def __init__(self, child: subprocess.Popen[str], errors: IO[str], destination: Path) -> None:
        self._child = child
        self._errors = errors
        self._destination = destination

    def wait_until_it_writes(self) -> None:
        """Until there is a segment of a part; nothing is under the final name yet."""
        hidden = f".{self._destination.name}.msgstore/*/parts/*/*.sqs"
        deadline = time.monotonic() + PATIENCE
        while not list(self._destination.parent.glob(hidden)):
            assert self._child.poll() is None, self._said()
            assert time.monotonic() < deadline, self._said()
            time.sleep(0.05)
        assert not self._destination.exists()

    def kill_executor(self) -> None:
        """One of several, with the Pythons that it has started."""
        os.kill(self._executor(), signal.SIGKILL)

    def kill_python(self) -> None:
        """That of a task of one executor, which goes on."""
        workers = [pid for pid in descendants(self._executor()) if "pyspark" in arguments(pid)]
        os.kill(workers[-1], signal.SIGKILL)

    def _executor(self) -> int:
        executors = [pid for pid in descendants(self._child.pid) if "CoarseGrainedExecutorBackend" in arguments(pid)]
        return [pid for pid in executors if "--executor-id 0" in arguments(pid)][-1]

    def kill(self) -> None:
        """The driver and its JVM."""
        java = [pid for pid in descendants(self._child.pid) if "org.apache.spark" in arguments(pid)]
        os.kill(java[-1], signal.SIGKILL)
        os.kill(self._child.pid, signal.SIGKILL)
        # Not wait(): as long as its end was not asked for, nobody else gets its number.
        os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)

    def ends(self) -> str:
        """The last line that it prints. AssertionError if it fails."""
        assert self._child.stdout is not None
        said = self._child.stdout.read()
        assert self._child.wait(60) == 0, self._said()
        return said.splitlines()[-1]

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]


@contextlib.contextmanager
def job(program: str, *given: str, destination: Path, env: Mapping[str, str] | None = None) -> Iterator[Job]:
    """``program`` with arguments, which writes a store at ``destination``."""
    environment = os.environ | {"JAVA_HOME": str(find_java_home()), "SPARK_LOCAL_IP": "127.0.0.1", **(env or {})}
    command = [sys.executable, "-c", textwrap.dedent(program), *given]
    started: dict[str, Any] = {"env": environment, "start_new_session": True}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, **started) as child,
    ):
        try:
            yield Job(child, errors, destination)
        finally:
            for pid in descendants(child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(path.parent.name), *descendants(int(path.parent.name))]
    return found


def arguments(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""
