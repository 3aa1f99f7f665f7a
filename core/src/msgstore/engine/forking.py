"""What a fork does to open stores: the parent keeps them, the child has to open its own.

Both would append to the same segment at the same place, and the child has neither the threads nor the locks that it found.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """What belongs to the process that made it."""

    def disown(self) -> None:
        """In a child, right after the fork."""
        ...


_open: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(owned: ForkAware) -> None:
    """A child that this process forks finds it disowned: a store closed, a lock let go."""
    _open.add(owned)


def _in_child() -> None:
    for owned in list(_open):
        owned.disown()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
