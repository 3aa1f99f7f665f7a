"""What the locks of an open store have to say about the thread that asks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


def is_mine(lock: threading.RLock) -> bool:
    """Whether the calling thread has it."""
    return lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # what Condition asks it, too


@contextlib.contextmanager
def left_without(*locks: threading.RLock) -> Iterator[None]:
    """Whoever comes here without one of them leaves without it.

    Around what takes one other than by ``with lock``: an exception from a signal's handler may come when it is taken, and the
    block that lets go of it is not entered yet. All other threads would wait for it without end.
    """
    absent = [lock for lock in locks if not is_mine(lock)]
    try:
        yield
    finally:
        for lock in absent:
            while is_mine(lock):
                lock.release()
