"""Processes of the kit's tests: calls in a copy of this process, and an index in a new one that is stopped or killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from msgstore.contract import IndexContext
from msgstore.files import Files
from msgstore.testing.index_model import IndexDirectory
from msgstore.testing.probes import eager_switching

THREADS, ROUNDS = 8, 20
"""A conflict of two threads that depends on chance appears in one of the rounds."""


def in_a_process(work: Callable[[], object], seconds: float | None = 60) -> tuple[int, str]:
    """Call ``work`` in a copy of this process. Return its exit code, negative after a signal, and the traceback of what it
    raised. Fails if it has not ended after ``seconds``."""
    receiving, sending = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        try:
            work()
        except Exception:
            sending.send(traceback.format_exc())
            raise

    raised = ""
    with receiving, warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # other threads do not matter here
        child = multiprocessing.get_context("fork").Process(target=run)
        with sending:
            child.start()
        with contextlib.suppress(EOFError):
            raised = receiving.recv() if receiving.poll(seconds) else raised
    child.join(seconds)
    hangs = child.is_alive()
    child.kill()
    child.join()
    assert not hangs, "it hangs in a process of its own"
    assert child.exitcode is not None
    return child.exitcode, raised


def run_in_parallel(run: Callable[[int], None], rounds: int = ROUNDS) -> None:
    """Call ``run(thread number)`` ``rounds`` times on each of ``THREADS`` threads, which begin together. They are in a process
    of their own: a library in C whose state they share may end it."""

    def work() -> None:
        begin = threading.Barrier(THREADS)

        def go_on(number: int) -> None:
            begin.wait(30)
            for _ in range(rounds):
                run(number)

        with eager_switching(), ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(go_on, range(THREADS)))

    code, raised = in_a_process(work, None)
    if raised:
        pytest.fail(f"calls on {THREADS} threads at once: {raised}")
    assert code == 0, f"calls on {THREADS} threads at once end the process: exit code {code}"


class ChildProcess:
    """A new process that calls ``work(descriptor, context, connection)``. ``last`` is what it has sent last."""

    def __init__(self, place: IndexDirectory, work: Callable[..., object], **context: Any) -> None:
        """Waits for the first message. Raises EOFError if the index has failed."""
        processes = multiprocessing.get_context("spawn")
        self._received, sent = processes.Pipe(duplex=False)
        made = IndexContext(place.subject.made_options, place.directory, Files(), **context)
        self._process = processes.Process(target=work, args=(place.subject.descriptor, made, sent), daemon=True)
        self._process.start()
        sent.close()
        self.last = self._received.recv()

    def progress(self) -> Any:
        """Return ``last`` as it is by now."""
        with contextlib.suppress(EOFError, OSError):
            while self._received.poll():
                self.last = self._received.recv()
        return self.last

    @contextlib.contextmanager
    def stopped(self) -> Iterator[Any]:
        """Stop the process for the block, which gets ``last``. Its files are as if it had been killed."""
        assert self._process.pid
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)
        try:
            yield self.progress()
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def wait(self) -> Any:
        """Return ``last`` when the work has ended."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.last = self._received.recv()
        return self.last

    def kill(self) -> Any:
        """Return ``last``."""
        self._process.kill()
        self._process.join()
        return self.progress()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._received.close()
