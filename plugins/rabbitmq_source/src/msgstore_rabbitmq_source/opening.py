"""Open a node for the commands of this plugin."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from msgstore.contract import Buffer, SourceContext, StoreError
from msgstore_rabbitmq_source.source import RabbitmqSource

_READ_WHOLE = 64 * 2**20


@contextmanager
def open_node(path: Path, now_ms: int | None = None) -> Iterator[RabbitmqSource]:
    """Open the node at ``path`` for reading. Raises StoreError if there is none."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with ExitStack() as files:
        context = SourceContext(path=path, options=None, read=lambda name: _read(files, path / name), now_ms=now)
        source = RabbitmqSource(context)
        files.callback(source.close)
        if not source.node.files.vhosts:
            for place, reason in source.node.files.skipped:
                raise StoreError(f"{path / place}: {reason}")
            raise StoreError(f"{path}: has no queues and no message store of RabbitMQ. Name the data directory of a node.")
        yield source


class _Mapped(mmap.mmap):
    """A file that tells its holes, so that a sparse one costs no more than what is stored."""

    file: BinaryIO

    def stored_parts(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each part from ``start`` on that the file system has stored. Between them are zeros."""
        while start < len(self):
            try:
                begin = os.lseek(self.file.fileno(), start, os.SEEK_DATA)
            except OSError:  # no more data
                return
            start = os.lseek(self.file.fileno(), begin, os.SEEK_HOLE)
            yield begin, min(start, len(self))


def _read(files: ExitStack, path: Path) -> Buffer:
    """Return the content of a regular file. A large one is mapped as long as the node is open."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    if about.st_size <= _READ_WHOLE:
        return path.read_bytes()
    file = files.enter_context(path.open("rb"))
    found = files.enter_context(_Mapped(file.fileno(), 0, access=mmap.ACCESS_READ))
    found.file = file
    return found
