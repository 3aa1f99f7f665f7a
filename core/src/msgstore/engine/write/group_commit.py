"""GroupCommit: something that takes long and serves everybody who asked for it before it began, such as a flush with its sync."""

from __future__ import annotations

import threading
from collections.abc import Callable

_PATIENCE = 5.0
"""Seconds that a thread waits for another one's turn before it takes one of its own."""


class _Turn:
    """One time that it is done."""

    def __init__(self) -> None:
        self.waiting: list[threading.Lock] = []
        """One for each thread that waits for it, held until it is over."""
        self.succeeded = False


class GroupCommit:
    """Whoever comes first waits until the way is free, and does it for all who come meanwhile; the others wait for that one
    turn.

    They do not queue for the lock itself: then each of them would be held up once more, by a turn that is not for it.
    """

    def __init__(self, lock: threading.RLock) -> None:
        """``lock``: held while it is done."""
        self._lock = lock
        self._mutex = threading.Lock()
        self._next: _Turn | None = None
        """The turn that has not begun yet, if anybody wants one."""

    def take(self, work: Callable[[], object]) -> None:
        """Returns when ``work`` was done, by somebody, from its beginning on. Never with the lock. Raises what ``work`` raises
        to whoever does it; the others then try for themselves."""
        while True:
            mine, waiting = _Turn(), threading.Lock()
            waiting.acquire()
            try:
                with self._mutex:
                    turn = self._next = self._next or mine
                    if turn is not mine:
                        turn.waiting.append(waiting)
                if turn is mine:
                    self._do(work, mine)
                    return
            finally:
                self._end(mine)
            waiting.acquire(timeout=_PATIENCE)
            if turn.succeeded:
                return
            with self._mutex:
                if self._next is turn:  # an exception from outside stopped whoever was to do it: nobody joins it any more
                    self._next = None

    def _do(self, work: Callable[[], object], turn: _Turn) -> None:
        with self._lock:
            with self._mutex:
                self._next = None  # who comes from now on is not served by this one
            work()
        turn.succeeded = True

    def _end(self, turn: _Turn) -> None:
        """It is over, however it ended, or never began."""
        with self._mutex:
            if self._next is turn:  # interrupted
                self._next = None
        for waiting in turn.waiting:
            waiting.release()
