"""A small process that keeps a job's lock while another process lives: of a job whose driver is no process of Python.

Spark plans a write in one Python process and commits it in another, and neither lives as long as the job; its JVM does.

    python -m msgstore.jobs.output.lock_keeper LOCK_DESCRIPTOR PROCESS DIRECTORY

It ends, and the lock with it, when that process has ended or the directory is gone.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PAUSE = 0.5
"""Seconds between two looks at the directory."""
_children: list[subprocess.Popen[bytes]] = []
"""Nobody waits for them; to drop one that runs would be warned about."""


def start(lock: int, pid: int, directory: str) -> None:
    """Hand an open descriptor of the lock's file over; the caller closes its own. Raises OSError."""
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, str(lock), str(pid), directory],
        pass_fds=[lock],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    _children.append(child)


def keep(pid: int, directory: Path) -> None:
    """Returns when the process has ended or the directory is gone."""
    try:
        # Linux: a number that is used again is no other process. Elsewhere nothing can be waited for.
        process = [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []
        while directory.is_dir() and not select.select(process, [], [], _PAUSE)[0]:
            if not process:
                with suppress(PermissionError):
                    os.kill(pid, 0)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    keep(int(sys.argv[2]), Path(sys.argv[3]))
