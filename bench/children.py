"""Calls of functions of the benchmark in child processes: ``children.py MODULE FUNCTION ARGUMENTS``, with JSON both ways.

Some figures need a new process: its memory, the bytes that it writes, and the files that a killed process leaves.
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
    """Return the result of ``function(*arguments)`` in a new process. It must be a module-level function."""
    process = _run(function, arguments)
    if process.returncode:
        raise RuntimeError(f"{function.__module__}.{function.__name__} failed with {process.returncode}:\n{process.stderr}")
    return json.loads(process.stdout)


def call_killed(function: Callable[..., Any], *arguments: Any) -> None:
    """Call ``function(*arguments)`` in a new process, which must end by killing itself."""
    process = _run(function, arguments)
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{function.__module__}.{function.__name__} was not killed but ended:\n{process.stderr}")


def _run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, function.__module__, function.__name__, json.dumps(arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def bytes_written() -> int | None:
    """Return the bytes that this process has passed to write system calls; None if the system does not count them.

    Includes all files and threads, but not writes through a mapping.
    """
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, mapped files included; None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    module, name, text = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(text))))
