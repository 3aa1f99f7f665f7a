"""``kill -9`` of a process under load, again and again on one directory: nothing confirmed is lost, nothing removed returns.

The process opens the store, and workers of the stress test use it until it is killed. They tell what happens through a pipe, in
records of one letter and a message id (see ``Task.journal``), each written by one system call, so that nothing that was told
is lost with the process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from crash.history import CrashCell
from stress.running import USUAL
from stress.worker import Board, Findings, Task, Worker, body_of
from support import needs_foreign, open_with

pytestmark = pytest.mark.crash

CELLS = [
    (CrashCell("ets", "v2"), "os"),
    (CrashCell("ets", "v2-checksum"), "fsync"),
    (CrashCell("lmdb", "v2"), "os"),
    (CrashCell("lmdb", "v2-checksum"), "os"),
    (CrashCell("lmdb", "v2"), "fsync"),
    pytest.param(CrashCell("sqlite", "ledger"), "os", marks=needs_foreign),
    pytest.param(CrashCell("sqlite", "v2"), "fsync", marks=needs_foreign),
]
THREADS = 3
LIVING = REMOVED = 100
WRONG = 3
"""Exit status of a process in which anything was not as it should be."""


def work(path: Path, keys: dict[str, Any], seed: str, pipe: Connection) -> None:
    """Never returns."""

    def journal(letter: bytes, ids: Iterable[bytes]) -> None:
        for msg_id in ids:
            pipe.send_bytes(letter + msg_id)

    try:
        store, findings, board = open_with(path, **keys), Findings(), Board(THREADS)
        owned: list[dict[bytes, int]] = [{} for _ in range(THREADS)]
        for entry in store.entries():
            owned[entry.msg_id[7] % THREADS][entry.msg_id] = entry.references
        tasks = [Task(n, f"{seed} {n}", 10**9, LIVING, 0, REMOVED, mine, journal) for n, mine in enumerate(owned)]
        workers = [Worker(task, store, board, findings) for task in tasks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(findings, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    os._exit(WRONG)


class Account:
    """What the killed processes told, and what must be there now."""

    def __init__(self) -> None:
        self.alive: set[bytes] = set()
        """Confirmed, and nobody was about to remove it."""
        self.doubtful: set[bytes] = set()
        """About to be removed."""
        self.dead: set[bytes] = set()
        """Removed, and a flush has returned since."""
        self.confirmed = 0

    def note(self, letter: bytes, msg_id: bytes) -> None:
        if letter == b"C":
            self.confirmed += 1
            if msg_id not in self.doubtful and msg_id not in self.dead:
                self.alive.add(msg_id)
        elif letter == b"R":
            self.alive.discard(msg_id)
            self.doubtful.add(msg_id)
        elif letter == b"D":
            self.doubtful.discard(msg_id)
            self.dead.add(msg_id)

    def compare(self, found: set[bytes], *, persistent: bool) -> None:
        lost = self.alive - found
        assert not lost, f"{len(lost)} confirmed messages are lost"
        if persistent:
            returned = self.dead & found
            assert not returned, f"{len(returned)} removed messages returned"
        self.alive, self.doubtful = set(found), set()
        self.dead -= found  # with an index that is not persistent


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    """What is imported is imported once; each process is a fork of one that has opened nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crash.test_kill"])
    return context


def kill(
    process: multiprocessing.Process, reading: Connection, writing: Connection, delay: float, account: Account, *, opening: bool
) -> None:
    """End a process ``delay`` seconds after its start (``opening``), or after its first confirm."""
    process.start()
    writing.close()
    timer = threading.Timer(delay, process.kill)
    if opening:
        timer.start()
    with reading, contextlib.suppress(EOFError):
        while True:
            record = reading.recv_bytes()
            if timer.ident is None:
                timer.start()
            account.note(record[:1], record[1:])
    process.join()
    timer.cancel()
    assert process.exitcode == -signal.SIGKILL, "the process ended by itself: see its standard error"


@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9")
@pytest.mark.parametrize(("crash_cell", "durability"), CELLS, ids=lambda value: str(value))
def test_killed_under_load(crash_cell, durability, processes, tmp_path, request, tell):
    kills = request.config.getoption("--kills")
    path, account, chance = tmp_path / "store", Account(), random.Random(f"{crash_cell} {durability}")
    keys = crash_cell.keys | USUAL | {"durability": durability, "sync_interval": "1ms"}
    count = 0
    while count < kills or (account.confirmed <= kills and count < 5 * kills):
        # Longer lives where others want the processor so much that most end before anything is confirmed.
        longer = 1 if account.confirmed >= count else 5
        delay = longer * chance.choice([0.005, 0.03, 0.15]) * chance.random()
        reading, writing = processes.Pipe(duplex=False)
        process = processes.Process(target=work, args=(path, keys, str(count), writing), daemon=True)
        kill(process, reading, writing, delay, account, opening=chance.random() < 0.25)
        store = open_with(path, **keys)
        entries = list(store.entries())
        with store.client() as client:
            bodies = client.read_many(entry.msg_id for entry in entries)
        assert store.stats().quarantined == 0
        (store.close if chance.random() < 0.3 else store.abandon)()
        assert all(body == body_of(msg_id) for msg_id, body in bodies.items())
        account.compare(set(bodies), persistent=crash_cell.persistent)
        count += 1
    tell(f"{crash_cell} {durability} kill -9", f"{count} kills under load of {THREADS} threads, {account.confirmed} confirms")
    assert account.confirmed > kills
