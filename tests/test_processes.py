"""The processes of a job that ends otherwise than it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import until

JOB = """
import functools, os, sys, time
from msgstore.jobs.local import task_runner

def work(task, directory):
    open(os.path.join(directory, str(os.getpid())), "w").close()
    if task > 1:
        time.sleep(3600)

if __name__ == "__main__":
    with task_runner(2, 4) as run:
        list(run(functools.partial(work, directory=sys.argv[1]), range(4)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_of_a_job_that_is_killed_end(tmp_path: Path) -> None:
    script, pids = tmp_path / "job.py", tmp_path / "pids"
    script.write_text(JOB)
    pids.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(pids)], stderr=subprocess.DEVNULL) as job:
        until(lambda: len(list(pids.iterdir())) == 2)
        job.kill()
    workers = [int(path.name) for path in pids.iterdir()]
    try:
        until(lambda: not any(map(is_there, workers)))
    finally:
        for pid in filter(is_there, workers):
            os.kill(pid, signal.SIGKILL)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from msgstore.jobs.local import task_runner\nwith task_runner(2, 4) as run:\n    list(run(abs, range(4)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert "StoreError: a process that did part of the job was killed" in done.stderr
    assert """no 'if __name__ == "__main__":'""" in done.stderr
