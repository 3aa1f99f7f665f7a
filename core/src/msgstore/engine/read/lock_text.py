"""Lock text: what a reader in another process learns about the writer from the text of ``msgstore.lock``.

======================  ==========================================================================
``PID``                 a writer is opening the store, or was killed while it did
``PID SESSION``         a writer has opened the store: the index is complete. Stays if it is killed
``- TOKEN``             no writer: the last one has closed the store
nothing                 no writer so far
======================  ==========================================================================

``SESSION`` and ``TOKEN`` are random, so a text never returns after it changed. A writer changes it before it touches anything, and
when it is done. So the same text before and after a read proves that the read lies within one session.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from msgstore.files import Files
from msgstore.lock_file import MAX_TEXT, open_lock


class LockTextReader:
    """Reads the text with one system call, once the file exists. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None
        self._opening = threading.Lock()
        self._is_closed = False

    def text(self) -> bytes:
        """Return the text; empty if there is no file, or after ``close``. Raises OSError; StoreError if it is no plain file."""
        fd = self._fd
        if fd is None:
            fd = self._open()
        return b"" if fd is None else Files.pread(fd, MAX_TEXT, 0)

    def _open(self) -> int | None:
        with self._opening:
            if self._fd is None and not self._is_closed:
                try:
                    self._fd = open_lock(self._directory, os.O_RDONLY)
                except FileNotFoundError:
                    return None
            return self._fd

    def close(self) -> None:
        """Close the file."""
        with self._opening:
            self._is_closed = True
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
