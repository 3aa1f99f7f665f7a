"""Forks: a child process does not share the open stores of its parent.

Both would append to the same segment at the same offset, and the child has none of the threads that hold its locks.
"""

from __future__ import annotations

import os
import weakref
from threading import Lock
from typing import Protocol


class ForkAware(Protocol):
    """Object that is valid only in the process that created it."""

    def disown(self) -> None:
        """Called in the child, right after the fork."""


_open: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(owned: ForkAware) -> None:
    """Call ``owned.disown()`` in every child process that is forked from now on."""
    _open.add(owned)


def renew_locks(*locks: Lock) -> None:
    """Make locks free in a child process: the threads that held them are not there."""
    for lock in locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own


def _in_child() -> None:
    for owned in list(_open):
        owned.disown()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
