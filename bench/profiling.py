"""Profiles of operations, taken for missed requirements.

``cProfile`` makes every call slower, so own times only show where to look. File operations are timed in
``msgstore.files.Files``, on all threads, which costs about a microsecond each.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgstore.files import Files

TOP = 8
"""Number of functions in a profile."""
MOST_MESSAGES = 20_000
"""Maximum number of messages of a profiled run."""
MANAGERS = ("view",)
"""Methods of ``Files`` that are context managers. They are not timed, because other operations run inside them."""


@dataclass(frozen=True)
class Line:
    """One line of a profile."""

    what: str
    value: float
    unit: str


@dataclass
class Profile:
    """Profile for one requirement."""

    store: str
    operation: str
    size: int
    what: str
    """Requirement, as in the table."""
    how: str
    """Description of the run, and of how the lines were taken."""
    lines: list[Line] = field(default_factory=list)


def own_times(action: Callable[[], object], messages: int, unit: str = "ns") -> list[Line]:
    """Run ``action``, and return the functions of this thread by own time, in ``unit`` per message."""
    profiler = cProfile.Profile()
    gc.collect()
    profiler.enable()
    try:
        action()
    finally:
        profiler.disable()
    return functions(profiler, messages, unit)


def functions(profiler: cProfile.Profile, messages: int, unit: str = "ns") -> list[Line]:
    """Return the functions of a profiler by own time, in ``unit`` per message."""
    found = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    scale = {"ns": 1e9, "us": 1e6, "ms": 1e3}[unit] / messages
    rows = [(own * scale, _name(*place), calls / messages) for place, (_, calls, own, _, _) in found]
    rows.sort(reverse=True)
    return [Line(f"{name}, {calls:.3g} calls", value, unit) for value, name, calls in rows[:TOP]]


def _name(file: str, line: int, function: str) -> str:
    if file == "~":
        return function.strip("<>")
    return f"{'/'.join(Path(file).parts[-2:])}:{line} {function}"


@dataclass(frozen=True)
class Event:
    """Timed operation. Start and end are seconds of ``perf_counter``."""

    name: str
    start: float
    end: float
    thread: int
    path: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class TimedFiles(Files):
    """File layer that records each operation as an Event, and the bytes written by file name.

    Wraps every public method of ``Files``. An operation that calls other operations is one event.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.written: dict[str, int] = {}
        self._inside = threading.local()
        self._paths: dict[int, str] = {}
        for name in dir(Files):
            if not name.startswith("_") and name not in MANAGERS and callable(getattr(Files, name)):
                setattr(self, name, self._timed(name, getattr(self, name)))

    def seconds(self, *names: str) -> float:
        """Return the seconds of these operations, or of all operations, on all threads."""
        return sum(event.seconds for event in self.events if event.name in names or not names)

    def count(self, *names: str) -> int:
        return sum(event.name in names for event in self.events)

    def lines(self, messages: int, unit: str = "ns") -> list[Line]:
        """Return the time per message of each operation, on all threads."""
        scale = {"ns": 1e9, "us": 1e6, "ms": 1e3}[unit] / messages
        names = sorted({event.name for event in self.events}, key=lambda name: -self.seconds(name))
        return [
            Line(f"{name}, {self.count(name) / messages:.3g} calls", self.seconds(name) * scale, unit) for name in names[:TOP]
        ]

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        inside, events, clock = self._inside, self.events, time.perf_counter

        def timed(*arguments: Any, **keys: Any) -> Any:
            if name == "pwrite":
                self._note_written(*arguments)
            if getattr(inside, "any", False):
                return self._note_path(name, arguments, call(*arguments, **keys))
            inside.any = True
            start = clock()
            try:
                return self._note_path(name, arguments, call(*arguments, **keys))
            finally:
                events.append(Event(name, start, clock(), threading.get_ident(), self._path_of(arguments)))
                inside.any = False

        return timed

    def _note_path(self, name: str, arguments: Sequence[Any], result: Any) -> Any:
        if name in ("open_read", "open_write", "create"):
            self._paths[result] = Path(arguments[0]).name
        return result

    def _path_of(self, arguments: Sequence[Any]) -> str:
        first = arguments[0] if arguments else ""
        return self._paths.get(first, "") if isinstance(first, int) else Path(first).name

    def _note_written(self, fd: int, data: bytes, offset: int) -> None:
        path = self._paths.get(fd, "")
        self.written[path] = self.written.get(path, 0) + len(data)

    def written_by_kind(self) -> dict[str, int]:
        """Return written bytes by kind of file: its name without digits."""
        found: dict[str, int] = {}
        for path, size in self.written.items():
            kind = "N" + "".join(Path(path).suffixes) if path[:1].isdigit() else path.translate(_NO_DIGITS)
            found[kind] = found.get(kind, 0) + size
        return found


_NO_DIGITS = str.maketrans({str(digit): "" for digit in range(10)})


@contextmanager
def garbage_collections(events: list[Event]) -> Iterator[None]:
    """Add Python's garbage collections during the block to ``events``: they stop all other Python code."""
    started: list[float] = []

    def note(phase: str, about: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            started.append(now)
        elif started:
            name = f"garbage collection of generation {about['generation']}"
            events.append(Event(name, started.pop(), now, threading.get_ident()))

    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)


def slowest_calls(starts: Sequence[float], seconds: Sequence[float], events: Sequence[Event], most: int = 5) -> list[Line]:
    """Return the slowest calls of this thread, with the events during each call on this thread and on others."""
    this_thread = threading.get_ident()
    lines = []
    for at in sorted(range(len(seconds)), key=lambda at: -seconds[at])[:most]:
        start, end = starts[at], starts[at] + seconds[at]
        concurrent = sorted((e for e in events if e.start < end and e.end > start), key=lambda e: e.start)
        own = [event for event in concurrent if event.thread == this_thread]
        stamps = [f"{e.name} {_stamp(e, start)}" for e in own]
        others = [f"{e.name} {_stamp(e, start)}" for e in concurrent if e.thread != this_thread]
        rest = seconds[at] - sum(min(e.end, end) - max(e.start, start) for e in own)
        inside = ", ".join(_short(stamps)) or "no file operation"
        text = f"call {at + 1:,} of {len(seconds):,}: {inside}; the rest {rest * 1e6:,.0f}"
        if others:
            text += f"; other threads: {', '.join(_short(others))}"
        lines.append(Line(text, seconds[at] * 1e6, "us"))
    return lines


def _stamp(event: Event, start: float) -> str:
    return f"{(event.start - start) * 1e6:,.0f}-{(event.end - start) * 1e6:,.0f}"


def _short(stamps: Sequence[str], most: int = 6) -> list[str]:
    return [*stamps[:most], f"{len(stamps) - most} more"] if len(stamps) > most else [*stamps]
