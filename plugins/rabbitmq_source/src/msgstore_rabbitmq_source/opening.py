"""Open a node for the commands of this plugin."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgstore.contract import Buffer, SourceContext, StoreError
from msgstore_rabbitmq_source.source import RabbitmqSource

_READ_WHOLE = 64 * 2**20


@contextmanager
def open_node(path: Path, now_ms: int | None = None) -> Iterator[RabbitmqSource]:
    """Open the node at ``path`` for reading. Raises StoreError if there is none."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    source = RabbitmqSource(SourceContext(path=path, options=None, read=lambda name: _read(path / name), now_ms=now))
    try:
        if not source.node.files.vhosts:
            raise StoreError(f"{path}: has no queues and no message store of RabbitMQ. Name the data directory of a node.")
        yield source
    finally:
        source.close()


def _read(path: Path) -> Buffer:
    if path.stat().st_size <= _READ_WHOLE:
        return path.read_bytes()
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
