"""Sweeps in several processes: their shares, the time limit for one store, and the result."""

from __future__ import annotations

import faulthandler
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import attrs

HANG = 60
"""Seconds after which a store is said to hang, and the process that opened it ended; it takes some hundredths of one."""


@attrs.frozen
class Outcome:
    """Result of one sweep, or of a share of it."""

    points: int = 0
    """Crash points, faults or flips that can be tried. Each share has the number of all."""
    states: int = 0
    """Stores opened: different directories, or different obligations."""
    failures: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(max(self.points, other.points), self.states + other.states, self.failures + other.failures)


@attrs.frozen
class Workers:
    """Processes that open stores. Fresh ones, not forks: a fork would share what this process has open."""

    pool: ProcessPoolExecutor
    count: int

    def share(self, work: Callable[..., Outcome], *arguments: Any) -> Outcome:
        """Call ``work(*arguments, share, shares)`` in each process, and add up what they return."""
        jobs = [self.pool.submit(work, *arguments, share, self.count) for share in range(self.count)]
        return sum((job.result() for job in jobs), Outcome())


def problem(call: Callable[[], object]) -> str:
    """Return what went wrong in a call, whatever it is; nothing if nothing did. A hang ends this process."""
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        call()
    except Exception as error:
        return described(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return ""


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)[-4:])
