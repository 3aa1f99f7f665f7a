"""Calls in processes of their own, as many at a time as there are processors: what raises, hangs or dies is reported."""

from __future__ import annotations

import faulthandler
import itertools
import logging
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import attrs

FORK = multiprocessing.get_context("fork")
PROCESSES = max(2, os.cpu_count() or 2)
Try = tuple[str, Callable[[int], Any]]
"""A label, and a call. It gets a number that no other has at the same time, for a directory of its own."""
HANG_SECONDS = 60
"""After so long a call is said to hang. Its stack is on standard error."""


def start_process(call: Callable[..., object], *arguments: Any) -> tuple[Any, Connection]:
    """Call in a fork of this process, with the end of a pipe as the last argument. Return the process and the other end."""
    reading, writing = FORK.Pipe(duplex=False)
    process = FORK.Process(target=call, args=(*arguments, writing), daemon=True)
    with warnings.catch_warnings():  # of threads, which have no lock that a call needs
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    writing.close()
    return process, reading


def in_processes(calls: Iterable[Try], seconds: float = HANG_SECONDS, batch: int = 16) -> Iterator[tuple[str, Any, str]]:
    """Yield (label, result, error) of each call. ``error``: what it raised, or how its process ended; empty if it returned.

    A process is a fork of this one, and makes ``batch`` calls, one after the other, unless it dies of one."""
    calls, free = iter(calls), list(range(PROCESSES))
    running: dict[Connection, tuple[list[Try], int, Any]] = {}
    try:
        while True:
            while free and (some := list(itertools.islice(calls, batch))):
                process, reading = start_process(_attempt, some, free[-1], seconds)
                running[reading] = some, free.pop(), process
            if not running:
                return
            for reading in wait(list(running)):
                some, number, process = running[reading]  # type: ignore[index]
                label, _ = some.pop(0)
                try:
                    result, error = reading.recv()  # type: ignore[union-attr]
                except EOFError:
                    process.join()
                    result, error = None, f"the process ended with exit status {process.exitcode}: see its standard error"
                    calls, some = itertools.chain(some, calls), []
                if not some:
                    process.join()
                    del running[reading]  # type: ignore[arg-type]
                    free.append(number)
                yield label, result, error
    finally:
        for _, _, process in running.values():
            process.kill()


def in_child(check: Callable[[], str]) -> str:
    """Return what ``check()`` returns in a fork of this process, or the error that it raises."""
    [(_, result, error)] = in_processes([("the child", lambda _: check())])
    return result or error


@attrs.define
class Outcome:
    points: int = 0
    """Crash points, or flips that can be tried."""
    states: int = 0
    """Stores opened."""
    failures: list[str] = attrs.Factory(list)

    @property
    def said(self) -> str:
        return f"{len(self.failures)} of {self.states}:\n" + "\n".join(self.failures[:5])

    def run(self, tries: Iterable[Try], enough: int | None = None) -> Outcome:
        """Make these tries in processes; until there are ``enough`` failures, if that is given."""
        failed = (f"{label}: {error}" for label, _, error in in_processes(tries) if error)
        self.failures += itertools.islice(failed, enough)
        return self


def _attempt(calls: list[Try], number: int, seconds: float, writing: Connection) -> None:
    logging.disable(logging.CRITICAL)  # damage is most of what happens here
    for _, call in calls:
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            writing.send((call(number), ""))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)[-4:])
            writing.send((None, text.encode(errors="backslashreplace").decode()))
    os._exit(0)
