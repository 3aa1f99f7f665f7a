"""Callbacks: which threads run one now (``on_confirm``, progress, observer)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident


class Callbacks:
    """One instance per open store, to which it does not refer: threads that call observers do not keep a store alive."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the calling thread runs a callback."""
        thread = get_ident()
        is_outermost = thread not in self._threads
        self._threads.add(thread)
        try:
            yield
        finally:
            if is_outermost:
                self._threads.discard(thread)

    @property
    def is_inside(self) -> bool:
        """True if the calling thread runs a callback."""
        return get_ident() in self._threads
