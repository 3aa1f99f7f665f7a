"""Live reader: reads next to a writer in another process, without a lock between the two.

The writer puts data on disk before the index points to it, and the index says that a record is dead or has moved before its
bytes are overwritten, cut or deleted. So a location that is the same before and after a read proves that the bytes were the
message's, as long as one session of a writer lasts. The text of ``msgstore.lock`` tells the sessions apart:

======================  ==========================================================================
``PID``                 a writer is opening the store, or was killed while it did
``PID SESSION``         a writer has opened the store: the index is complete. Stays if it is killed
``- TOKEN``             no writer: the last one has closed the store
nothing                 no writer so far
======================  ==========================================================================

``SESSION`` and ``TOKEN`` are random, so a text never returns after it changed. A writer changes it before it touches anything,
and when it is done. A *read view* is the state of the store while the text stays the same. Everything is read within one view:
if the text has changed by the end of a read, the read is repeated.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from msgstore.contract import MsgStoreError, StoreClosed, StoreError, StoreLocked
from msgstore.engine.backends import Backends
from msgstore.engine.read.reader import Reader
from msgstore.engine.segment.segment import Segment, io_errors
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
        self._lock = threading.RLock()
        self._view: ReadView | None = None
        self._make_view: MakeView = lambda _: None
        self._is_closed = False

    def text(self) -> bytes:
        """Return the text of the lock file; empty if there is none. Raises StoreClosed, StoreIOError; StoreError if it is no
        plain file."""
        with io_errors(self.directory):
            if (fd := self._fd) is None:
                with self._lock:
                    if self._is_closed:
                        raise StoreClosed(f"{self.directory}: the store is closed")
                    if self._fd is None:
                        try:
                            self._fd = open_lock(self.directory, os.O_RDONLY)
                        except FileNotFoundError:
                            return b""
                    fd = self._fd
            return Files.pread(fd, MAX_TEXT, 0)

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
        if self._is_closed:  # the descriptor may belong to another file now
            raise StoreClosed(f"{self.directory}: the store is closed")
        return text == view.text

    def _update_view(self) -> None:
        """Make a view of the present text. Waits for a writer that is opening the store."""
        with self._lock:
            until = time.monotonic() + OPENING_TIMEOUT_SECONDS
            while self._view is None or not self._is_current(self._view):
                text = self.text()
                with io_errors(self.directory):
                    view = self._make_view(text)
                if view is not None:
                    self._view, self._backends = view, view.backends
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
        self._is_closed = True
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class LiveReader(Reader):
    """While no writer has come, reads what the opening recovered. From then on segments are known by their files only."""

    is_final = False

    def __init__(self, tracker: WriterTracker, *parts: Any) -> None:
        """``parts``: arguments of :class:`Reader`."""
        super().__init__(*parts)
        self._tracker = tracker
        self._view: ReadView | None = None
        """View that the open segment files belong to. With other formats a number may belong to another file."""

    def consistently(self, call: Callable[[], T]) -> T:
        return self._tracker.consistently(lambda view: self._within(view, call))

    def _within(self, view: ReadView, call: Callable[[], T]) -> T:
        with self._state_lock, io_errors(self._directory):
            self._lifecycle.check_open()
            if view is not self._view:
                self._view, self._backends = view, view.backends
                for number in list(self._segments.by_number):
                    self._drop_file(number)
            return call()

    def _segment(self, number: int) -> Segment:
        found = self._segments.by_number.get(number)
        if found is not None:
            return found
        opened = self._segments.read_files.readers
        for other in [other for other, (fd, _) in opened.items() if self._files.is_deleted(fd)]:
            self._drop_file(other)  # its descriptor holds the space of a deleted segment
        formats = self._backends.formats
        for extension in formats.extensions:
            segment = Segment(number, self._directory / f"{number}{extension}", formats.by_extension(extension), 0)
            with suppress(FileNotFoundError):
                self._segments.read_files.open(segment)
                self._segments.by_number[number] = segment
                return segment
        raise FileNotFoundError(errno.ENOENT, "the index points to it, but there is no such segment")

    def _drop_file(self, number: int) -> None:
        if self._view is not None and self._view.live:
            self._segments.read_files.close(number)
            self._segments.by_number.pop(number, None)
