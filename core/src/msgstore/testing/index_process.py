"""A process that uses an index, and is stopped or killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from msgstore.contract import IndexContext
from msgstore.files import Files
from msgstore.testing.index_model import IndexDirectory


class ChildProcess:
    """A process that calls ``work(descriptor, context, connection)``. ``last`` is what it has sent last."""

    def __init__(self, place: IndexDirectory, work: Callable[..., object], **context: Any) -> None:
        """Waits for the first message. Raises EOFError if the index has failed."""
        processes = multiprocessing.get_context("spawn")
        self._received, sent = processes.Pipe(duplex=False)
        made = IndexContext(place.subject.made_options, place.directory, Files(), **context)
        self._process = processes.Process(target=work, args=(place.subject.descriptor, made, sent), daemon=True)
        self._process.start()
        sent.close()
        self.last = self._received.recv()

    def _receive(self) -> Any:
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
            yield self._receive()
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
        return self._receive()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._received.close()
