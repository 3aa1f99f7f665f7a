"""A flag that threads wait for, and that an exception from a signal's handler cannot jam.

``threading.Event`` takes its lock in Python code: a Ctrl-C in ``set``, at the wrong moment, leaves it locked, and the next
``set`` waits without end. A lock alone is taken and let go in one step of the interpreter.
"""

from __future__ import annotations

import contextlib
import threading


class Flag:
    """As ``threading.Event``; but ``wait`` may return early after a ``clear`` beside a ``set``: look at what it is for."""

    def __init__(self, value: bool = False) -> None:
        self._value = value
        self._door = threading.Lock()
        """Unlocked while the flag is set, as far as nobody was interrupted: who comes through opens it for the next."""
        if not value:
            self._door.acquire()

    def is_set(self) -> bool:
        return self._value

    def set(self) -> None:
        self._value = True
        self._open()

    def clear(self) -> None:
        self._value = False
        self._close()

    def wait(self, timeout: float) -> bool:
        """At most so many seconds. Whether it is set."""
        if not self._value and self._door.acquire(timeout=timeout):
            self._open()
            if not self._value:  # cleared meanwhile
                self._close()
        return self._value

    def _close(self) -> None:
        self._door.acquire(blocking=False)
        if self._value:  # set meanwhile
            self._open()

    def _open(self) -> None:
        if self._door.locked():
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._door.release()
