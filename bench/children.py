"""Calling a function of the bench in a process of its own: ``children.py MODULE FUNCTION ARGUMENTS``, with JSON both ways.

For what only a fresh process shows: its memory, the bytes that it writes, and what a killed one leaves behind.
"""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function(*arguments)`` returns in a new process. It must be found in its module by its name."""
    process = _run(function, arguments)
    if process.returncode:
        raise RuntimeError(f"{function.__module__}.{function.__name__} failed with {process.returncode}:\n{process.stderr}")
    return json.loads(process.stdout)


def call_killed(function: Callable[..., Any], *arguments: Any) -> None:
    """``function(*arguments)`` in a new process, which ends by killing itself."""
    process = _run(function, arguments)
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{function.__module__}.{function.__name__} was not killed but ended:\n{process.stderr}")


def _run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, function.__module__, function.__name__, json.dumps(arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def bytes_written() -> int | None:
    """Bytes that this process has passed to system calls that write; None where the system does not count them.

    All files and all threads. What goes through a mapping of a file is not in it.
    """
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM, pages of mapped files included; None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    module, name, text = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(text))))
