"""A process that is killed under load.

Run as a program it forks for every line that it is given, so that what is imported is imported once. The fork opens the store
and works on it from several threads until somebody kills it. What happens is told on standard output, in records of 17 bytes
(one letter, 16 bytes), each written by one system call, so that nothing that was told is lost with the process::

    P  process id        the fork is there
    C  message id        confirmed
    R  message id        its last reference is about to be removed
    D  message id        and a flush has returned since
    E  exit status       the fork is gone; nothing of it will follow
"""

from __future__ import annotations

import os
import random
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from crash.workload import CrashCell
from support import catalogue, open_with

RECORD = 17
THREADS = 3
SIZES = (0, 1, 40, 300, 1500, 9000)
"""Bytes of bodies; the last is a large message."""
WRONG = 3
"""Exit status of a fork in which anything was not as it should be."""


def keys(cell: CrashCell, durability: str) -> dict[str, Any]:
    return {
        **cell.keys, "durability": durability, "file_size_limit": "32KiB", "large_message": 8000, "sync_interval": "1ms",
    }  # fmt: skip


def body_of(msg_id: bytes) -> bytes:
    size = SIZES[msg_id[0] % len(SIZES)]
    return (msg_id * (size // 16 + 1))[:size]


def tell(letter: bytes, payload: bytes) -> None:
    os.write(1, letter + payload)


class Worker(threading.Thread):
    """Writes, reads and removes messages of its own."""

    def __init__(self, store: Any, seed: str, owned: list[bytes]) -> None:
        super().__init__()
        self.store = store
        self.chance = random.Random(seed)
        self.owned = owned
        """One entry for each reference that it may remove."""
        self.removed: list[bytes] = []
        """Since its last flush."""
        self.client = store.client(seed, on_confirm=self.confirmed)

    def confirmed(self, ids: list[bytes]) -> None:
        for msg_id in ids:
            tell(b"C", msg_id)

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
                tell(b"R", msg_id)
                self.removed.append(msg_id)
            self.client.remove([msg_id])

    def read(self) -> None:
        for msg_id in self.chance.choices(self.owned, k=5) if self.owned else []:
            assert self.client.read(msg_id) == body_of(msg_id), f"{msg_id.hex()} has wrong bytes"

    def flush(self) -> None:
        self.store.flush()
        for msg_id in self.removed:
            tell(b"D", msg_id)
        self.removed.clear()

    def collect(self) -> None:
        skipped = [done for done in self.store.compact(everything=True) if done.skipped]
        assert not skipped, skipped


def work(path: Path, cell: CrashCell, durability: str, seed: str) -> None:
    """Never returns."""
    try:
        store = open_with(path, **keys(cell, durability))
        owned: list[list[bytes]] = [[] for _ in range(THREADS)]
        for entry in store.entries():
            owned[entry.msg_id[1] % THREADS] += [entry.msg_id] * entry.references
        workers = [Worker(store, f"{seed}-{number}", mine) for number, mine in enumerate(owned)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except BaseException:
        traceback.print_exc()
    os._exit(WRONG)


def main() -> None:
    path, cell, durability = Path(sys.argv[1]), CrashCell(sys.argv[2], sys.argv[3]), sys.argv[4]
    catalogue()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            tell(b"P", os.getpid().to_bytes(16))
            work(path, cell, durability, line.strip())
        _, status = os.waitpid(pid, 0)
        tell(b"E", os.waitstatus_to_exitcode(status).to_bytes(16, signed=True))


if __name__ == "__main__":
    main()
