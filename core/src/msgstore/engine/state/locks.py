"""What the locks of an open store have to say about the thread that asks."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager


def is_owned(lock: threading.RLock) -> bool:
    """Whether the calling thread has it."""
    return lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # what Condition asks it, too


class release_on_exit(AbstractContextManager[None]):  # noqa: N801 - reads as the statement that it is
    """Whoever comes here without one of these locks leaves without it.

    Around what takes one other than by ``with lock``: an exception from a signal's handler may come when it is taken, and the
    block that lets go of it is not entered yet. All other threads would wait for it without end.

    As everything here that a signal may interrupt this is no generator: one that was left in its middle ends when it is
    collected, on whatever thread, and would let go of a lock that somebody has by then.
    """

    def __init__(self, *locks: threading.RLock) -> None:
        self._locks = locks

    def __enter__(self) -> None:
        self._locks = tuple(lock for lock in self._locks if not is_owned(lock))

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            while is_owned(lock):
                lock.release()
