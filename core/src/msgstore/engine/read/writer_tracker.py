"""Writer tracker: follows a writer in another process by the text of the lock file.

A *read view* is the state of the store as of the last change of the text. Everything is read within one view: if the text is
the same before and after a read, no writer opened or closed the store in between; otherwise the read is repeated.

The text of ``msgstore.lock`` says what the writer does:

======================  ==========================================================================
``PID``                 a writer is opening the store, or was killed while it did
``PID SESSION``         a writer has opened the store: the index is complete. Stays if it is killed
``- TOKEN``             no writer: the last one has closed the store
nothing                 no writer so far
======================  ==========================================================================

``SESSION`` and ``TOKEN`` are random, so a text never returns after it changed. A writer changes it before it touches anything,
and when it is done. So the same text before and after a read proves that the read lies within one session.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs

from msgstore.contract import MsgStoreError, StoreClosed, StoreError, StoreLocked
from msgstore.engine.backends import Backends
from msgstore.engine.segment.segment import io_errors
from msgstore.files import Files
from msgstore.writer_lock import MAX_TEXT, open_lock, parse_lock

OPENING_TIMEOUT_SECONDS = 5.0
"""Time that a reader waits for a writer that is opening the store."""
_POLL_SECONDS = 0.002
_MAX_VIEWS = 100
"""Writers that may come or go during one call."""

T = TypeVar("T")


@attrs.frozen(eq=False)
class ReadView:
    """State of a store while the lock file has one text."""

    text: bytes
    """Text of the lock file."""
    backends: Backends
    """Backends that the directory remembers."""
    live: bool = True
    """False if no writer came since the opening: what it recovered in memory is the store."""


MakeView = Callable[[bytes], ReadView | None]
"""``make_view(text)``: the view for a text of the lock file, or None while a writer is opening the store. Raises StoreError."""


class WriterTracker:
    """One instance per store that is open for reading. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd: int | None = None
        """Descriptor of the lock file, once it exists: the text is then read with one system call."""
        self._opening = threading.Lock()
        self._updating = threading.Lock()
        self._view: ReadView | None = None
        self._make_view: MakeView = lambda _: None
        self._is_closed = False

    def text(self) -> bytes:
        """Return the text of the lock file. Raises StoreIOError."""
        with io_errors(self.directory):
            return self._read_text()

    def _read_text(self) -> bytes:
        """Return the text; empty if there is no file, or after ``close``. Raises OSError; StoreError if it is no plain file."""
        fd = self._fd
        if fd is None:
            with self._opening:
                if self._fd is None and not self._is_closed:
                    try:
                        self._fd = open_lock(self.directory, os.O_RDONLY)
                    except FileNotFoundError:
                        return b""
                fd = self._fd
        return b"" if fd is None else Files.pread(fd, MAX_TEXT, 0)

    def begin(self, make_view: MakeView, view: ReadView | None) -> None:
        """Follow the present writer if ``view`` is None, else the next one."""
        self._make_view, self._view = make_view, view
        if view is None:
            self._update_view()

    def consistently(self, call: Callable[[ReadView], T]) -> T:
        """Return ``call(view)``, made within one view. Raises what it raises; StoreError if the store cannot be followed."""
        for _ in range(_MAX_VIEWS):
            view = self._view
            if view is not None:
                try:
                    result = call(view)
                except (MsgStoreError, OSError):
                    if self._is_current(view):
                        raise
                else:
                    if self._is_current(view):
                        return result
            self._update_view()
        raise StoreError(f"{self.directory}: writers came and went {_MAX_VIEWS} times within one call; try again")

    def _is_current(self, view: ReadView) -> bool:
        text = self.text()
        if self._is_closed:
            raise StoreClosed(f"{self.directory}: the store is closed")
        return text == view.text

    def _update_view(self) -> None:
        """Make a view of the present text. Waits for a writer that is opening the store."""
        with self._updating, io_errors(self.directory):
            until = time.monotonic() + OPENING_TIMEOUT_SECONDS
            while self._view is None or not self._is_current(self._view):
                text = self._read_text()
                view = self._make_view(text)
                if view is not None:
                    self._view = view
                elif time.monotonic() > until:
                    pid, _ = parse_lock(text)
                    raise StoreLocked(
                        f"{self.directory}: process {pid} has been opening the store for more than "
                        f"{OPENING_TIMEOUT_SECONDS:.0f} s. If it is recovering the store, try again when that is done.",
                        pid,
                    )
                else:
                    time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Let every later call raise StoreClosed."""
        with self._opening:
            self._is_closed = True
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
