"""What a process that only reads knows of the writer beside it: the text of ``msgstore.lock``.

======================  ==========================================================================
``PID``                 a writer is opening the store, or was killed while it did
``PID SESSION``         it has opened it: the index is whole. Stays when the writer is killed
``- TOKEN``             no writer: the last one has closed the store
nothing                 there never was one
======================  ==========================================================================

``SESSION`` and ``TOKEN`` are random, so no text returns once it was another. A writer changes it before it touches anything,
and when it is done. Whoever finds the same text before and behind what he did has done it within one session.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from msgstore.files import Files
from msgstore.lock_file import MAX_TEXT, open_lock


class LockTextReader:
    """One system call a look, once the file is there. Any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None
        self._opening = threading.Lock()
        self._closed = False

    def text(self) -> bytes:
        """Empty if there is no file, or it was closed here. Raises OSError, and StoreError for what is no plain file."""
        fd = self._fd
        if fd is None:
            fd = self._open()
        return b"" if fd is None else Files.pread(fd, MAX_TEXT, 0)

    def _open(self) -> int | None:
        with self._opening:
            if self._fd is None and not self._closed:
                try:
                    self._fd = open_lock(self._directory, os.O_RDONLY)
                except FileNotFoundError:
                    return None
            return self._fd

    def close(self) -> None:
        with self._opening:
            self._closed = True
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
