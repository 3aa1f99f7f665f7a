"""Processor time of a process and its descendants, such as a JVM and its Python workers, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

TICK: int = os.sysconf("SC_CLK_TCK")
JVM, PYTHON = "JVM", "Python"


def seconds() -> dict[str, float]:
    """Return the user and system time of this process and its descendants by kind, in hundredths of a second.

    Includes ended processes that were waited for. Raises OSError if there is no ``/proc``.
    """
    found = {JVM: 0.0, PYTHON: 0.0}
    for name, ticks in _family():
        found[JVM if name == "java" else PYTHON] += ticks / TICK
    return found


def _family() -> Iterator[tuple[str, int]]:
    """Yield (name, ticks) of this process and its descendants."""
    children: dict[int, list[tuple[int, str, int]]] = {}
    rows = dict(_processes())
    for pid, (name, parent, ticks) in rows.items():
        children.setdefault(parent, []).append((pid, name, ticks))
    name, _, ticks = rows[os.getpid()]
    yield name, ticks
    waiting = [os.getpid()]
    while waiting:
        for pid, name, ticks in children.get(waiting.pop(), ()):
            yield name, ticks
            waiting.append(pid)


def _processes() -> Iterator[tuple[int, tuple[str, int, int]]]:
    """Yield (process id, (name, parent, ticks)) of all processes."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended in the meantime
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        yield int(entry.name), (name, int(fields[1]), sum(map(int, fields[11:15])))
