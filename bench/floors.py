"""Lower bounds for every store: the same operations without a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from peer import LAG, Pair, Peer, batches

CHUNK = 2**20
"""Bytes per write, and per read of read_many."""


class Floor(Peer):
    """Floor without a store: all bodies, one after the other, in one file."""

    name = "floor"
    how = (
        "put: os.write of 1 MiB, joined beforehand; get: os.pread at known offsets; "
        "read_many: os.pread of 1 MiB, cut into bodies; lifecycle: a dict in memory"
    )
    operations: ClassVar[Sequence[str]] = ("put", "get", "read_many", "lifecycle")

    def __init__(self, directory: Path) -> None:
        self.fd = os.open(directory / "bodies", os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
        self.places: dict[bytes, tuple[int, int, int]] = {}
        """Id to (descriptor, size, offset), in the order of writing."""

    def prepare_puts(self, pairs: Sequence[Pair]) -> Sequence[Any]:
        end = 0
        for msg_id, body in pairs:
            self.places[msg_id] = self.fd, len(body), end
            end += len(body)
        count = max(CHUNK // max(len(pairs[0][1]), 1), 1)
        return [b"".join([body for _, body in batch]) for batch in batches(pairs, count)]

    def put_all(self, pairs: Sequence[Any]) -> None:
        for chunk in pairs:
            os.write(self.fd, chunk)

    def get_one(self, msg_id: bytes) -> bytes | None:
        return os.pread(*self.places[msg_id])

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        return [self.places[msg_id] for msg_id in ids]

    def get_all(self, targets: Sequence[Any]) -> None:
        pread = os.pread
        for fd, size, offset in targets:
            pread(fd, size, offset)

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        fd, size, offset = self.places[ids[0]]
        step, end = max(CHUNK // size, 1) * size, offset + len(ids) * size
        for start in range(offset, end, step):
            data = os.pread(fd, min(step, end - start), start)
            [data[at : at + size] for at in range(0, len(data), size)]

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        bodies = dict(pairs[:LAG])
        for (msg_id, body), (old, _) in zip(pairs[LAG:], pairs, strict=False):
            bodies[msg_id] = body
            bodies[old]
            del bodies[old]
        for old, _ in pairs[-LAG:]:
            bodies[old]
            del bodies[old]

    def close(self) -> None:
        os.close(self.fd)


class LookupFloor(Floor):
    """Minimum cost of a get by id for a store in Python whose index is a dict."""

    name = "look-up + pread"
    how = "dict from id to (descriptor, size, offset), then os.pread"
    operations: ClassVar[Sequence[str]] = ("get",)

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        return ids

    def get_all(self, targets: Sequence[Any]) -> None:
        pread, places = os.pread, self.places
        for msg_id in targets:
            fd, size, offset = places[msg_id]
            pread(fd, size, offset)
