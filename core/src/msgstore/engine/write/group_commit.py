"""Group commit: the first caller takes the lock and runs the work; callers that arrive before it starts wait for that run."""

from __future__ import annotations

import threading
from collections.abc import Callable

_RETRY_SECONDS = 5.0
"""Time that a thread waits for the run of another thread before it asks for one of its own."""


class _Run:
    """One execution of the work."""

    def __init__(self) -> None:
        self.done = threading.Lock()
        """Held until the run is over. Waiters pass it on to each other."""
        self.done.acquire()
        self.succeeded = False


class GroupCommit:
    """Runs one piece of work for all threads that ask for it. Thread-safe.

    Waiting threads do not queue for ``lock`` itself: each would be delayed by one more run that is not for it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        """``lock`` is held while the work runs."""
        self._lock = lock
        self._mutex = threading.Lock()
        self._next: _Run | None = None
        """Run that has not started yet, or None."""

    def run(self, work: Callable[[], object]) -> None:
        """Return when ``work`` has been run from its begin on, by some thread. Caller holds no lock.

        Raises what ``work`` raises in the calling thread; threads that waited for a failed run try it themselves.
        """
        while True:
            mine: _Run | None = None
            try:
                with self._mutex:
                    run = self._next
                    if run is None:
                        run = mine = self._next = _Run()
                if mine is not None:
                    with self._lock:
                        with self._mutex:
                            self._next = None
                        work()
                    mine.succeeded = True
                    return
            finally:
                if mine is not None:
                    with self._mutex:
                        if self._next is mine:  # it failed, or was interrupted, before it started
                            self._next = None
                    mine.done.release()
            if run.done.acquire(timeout=_RETRY_SECONDS):
                run.done.release()
            else:  # an exception from outside may have stopped the thread that was to run it
                with self._mutex:
                    if self._next is run:
                        self._next = None
            if run.succeeded:
                return
