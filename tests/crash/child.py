"""A process that is killed under load.

It opens the store and works on it from several threads until somebody kills it. What happens is told through a pipe, in records
of one letter and a message id, each written by one system call, so that nothing that was told is lost with the process::

    C  confirmed
    R  its last reference is about to be removed
    D  and a flush has returned since
"""

from __future__ import annotations

import os
import random
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from crash.workload import CrashCell
from support import open_with

THREADS = 3
SIZES = (0, 1, 40, 300, 1500, 9000)
"""Bytes of bodies; the last is a large message."""
WRONG = 3
"""Exit status of a process in which anything was not as it should be."""


def keys(cell: CrashCell, durability: str) -> dict[str, Any]:
    return {
        **cell.keys, "durability": durability, "file_size_limit": "32KiB", "large_message": 8000, "sync_interval": "1ms",
    }  # fmt: skip


def body_of(msg_id: bytes) -> bytes:
    size = SIZES[msg_id[0] % len(SIZES)]
    return (msg_id * (size // 16 + 1))[:size]


class Worker(threading.Thread):
    """Writes, reads and removes messages of its own."""

    def __init__(self, store: Any, seed: str, owned: list[bytes], pipe: Connection) -> None:
        super().__init__()
        self.pipe = pipe
        self.store = store
        self.chance = random.Random(seed)
        self.owned = owned
        """One entry for each reference that it may remove."""
        self.removed: list[bytes] = []
        """Since its last flush."""
        self.client = store.client(seed, on_confirm=self.confirmed)

    def confirmed(self, ids: list[bytes]) -> None:
        for msg_id in ids:
            self.pipe.send_bytes(b"C" + msg_id)

    def run(self) -> None:
        try:
            while True:
                self.chance.choices([self.write, self.remove, self.read, self.flush, self.collect], [8, 8, 8, 2, 0.3])[0]()
        except BaseException:
            traceback.print_exc()
            os._exit(WRONG)

    def write(self) -> None:
        for _ in range(self.chance.randrange(1, 20)):
            msg_id = self.chance.randbytes(16)
            for _ in range(self.chance.choice([1, 1, 1, 2])):
                self.client.write(msg_id, body_of(msg_id))
                self.owned.append(msg_id)

    def remove(self) -> None:
        while len(self.owned) > 100:
            at = self.chance.randrange(len(self.owned))
            self.owned[at], self.owned[-1] = self.owned[-1], self.owned[at]
            msg_id = self.owned.pop()
            last = msg_id not in self.owned
            if last:
                self.pipe.send_bytes(b"R" + msg_id)
                self.removed.append(msg_id)
            self.client.remove([msg_id])

    def read(self) -> None:
        for msg_id in self.chance.choices(self.owned, k=5) if self.owned else []:
            assert self.client.read(msg_id) == body_of(msg_id), f"{msg_id.hex()} has wrong bytes"

    def flush(self) -> None:
        self.store.flush()
        for msg_id in self.removed:
            self.pipe.send_bytes(b"D" + msg_id)
        self.removed.clear()

    def collect(self) -> None:
        skipped = [done for done in self.store.compact(everything=True) if done.skipped]
        assert not skipped, skipped


def work(path: Path, cell: CrashCell, durability: str, seed: str, pipe: Connection) -> None:
    """Never returns."""
    try:
        store = open_with(path, **keys(cell, durability))
        owned: list[list[bytes]] = [[] for _ in range(THREADS)]
        for entry in store.entries():
            owned[entry.msg_id[1] % THREADS] += [entry.msg_id] * entry.references
        workers = [Worker(store, f"{seed}-{number}", mine, pipe) for number, mine in enumerate(owned)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except BaseException:
        traceback.print_exc()
    os._exit(WRONG)
