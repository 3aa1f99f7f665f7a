"""Process that keeps the lock of a job while another process lives. For jobs whose driver is not a Python process.

Spark plans a write in one Python process and commits it in another. The job outlives both, but not Spark's JVM.

    python -m msgstore.jobs.output.lock_keeper LOCK_DESCRIPTOR PROCESS DIRECTORY

It ends, and with it the lock, when that process has ended or the directory does not exist any more.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_POLL_SECONDS = 0.5
_children: list[subprocess.Popen[bytes]] = []
"""Keepers that this process has started. They are not awaited; Python would warn if one was garbage-collected."""


def start(lock: int, pid: int, directory: str) -> None:
    """Start a keeper with a copy of the descriptor ``lock``; the caller closes its own. Raises OSError."""
    command = [sys.executable, "-m", __name__, str(lock), str(pid), directory]
    null = subprocess.DEVNULL
    _children.append(
        subprocess.Popen(command, pass_fds=[lock], stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    )


def keep(pid: int, directory: Path) -> None:
    """Return when the process has ended or the directory does not exist any more."""
    with suppress(ProcessLookupError):
        # Linux only. It also detects the end of a process whose number is in use again, or that nobody awaits.
        process = [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []
        while directory.is_dir() and not select.select(process, [], [], _POLL_SECONDS)[0]:
            if not process:
                os.kill(pid, 0)


if __name__ == "__main__":
    keep(int(sys.argv[2]), Path(sys.argv[3]))
