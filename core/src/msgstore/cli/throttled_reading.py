"""Reading of a segment at a limited rate, past bytes that the disk cannot read."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from msgstore.cli.scrub_state import DamagedSpan
from msgstore.contract import Buffer
from msgstore.files import READ_WHOLE, Files

CHUNK = 2**18
"""Bytes per read: the largest burst, and the span that counts as unreadable around a read error."""
MAX_CREDIT_SECONDS = 0.25
"""Reading time that can be saved up while the caller processes bytes."""


class Throttle:
    """Limits reading to ``rate`` bytes per second. Without a rate there is no limit."""

    def __init__(
        self,
        rate: int | None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now = now
        self._sleep = sleep
        self._next_read = now()
        """Time at which the next bytes may be read."""

    def spend(self, size: int) -> None:
        """Account for ``size`` bytes that were read. Blocks until the next read is allowed. Unused time is saved for up to
        MAX_CREDIT_SECONDS, so that processing does not reduce the rate."""
        if self._rate:
            now = self._now()
            self._next_read = max(self._next_read, now - MAX_CREDIT_SECONDS) + size / self._rate
            if self._next_read > now:
                self._sleep(self._next_read - now)


@attrs.frozen
class Content:
    """Bytes of a segment."""

    data: Buffer | None
    """Unreadable bytes are zeros. None if the file has unreadable bytes and is too large for memory."""
    state: tuple[int, int]
    """(size, modification time) before the read."""
    unreadable: list[DamagedSpan]


@contextlib.contextmanager
def read_throttled(files: Files, throttle: Throttle, path: Path) -> Iterator[Content]:
    """Yield the content of the file. A file that is too large for memory is mapped after a throttled read."""
    fd = files.open_read(path)
    try:
        state = size, _ = files.size_and_mtime(fd)
        parts: list[bytes] = []
        unreadable: list[DamagedSpan] = []
        for offset in range(0, size, CHUNK):
            length = min(CHUNK, size - offset)
            try:
                part = files.pread(fd, length, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                unreadable.append(DamagedSpan(path.name, offset, length, "unreadable"))
                part = bytes(length)
            if size <= READ_WHOLE:
                parts.append(part)
            throttle.spend(length)
        if size <= READ_WHOLE:
            yield Content(b"".join(parts), state, unreadable)
        elif unreadable:  # access to the mapping there would kill the process
            yield Content(None, state, unreadable)
        else:
            with files.view(path) as data:
                yield Content(data, state, unreadable)
    finally:
        files.close(fd)
