"""``kill -9`` of a process under load, again and again on one directory: nothing confirmed is lost, nothing removed returns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
from multiprocessing.connection import Connection

import pytest

from crash.child import THREADS, keys, work
from crash.workload import CrashCell
from stress.account import body_of
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
    context.set_forkserver_preload(["crash.child", "pytest"])
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
    count = 0
    while count < kills or (account.confirmed <= kills and count < 5 * kills):
        # Longer lives where others want the processor so much that most end before anything is confirmed.
        longer = 1 if account.confirmed >= count else 5
        delay = longer * chance.choice([0.005, 0.03, 0.15]) * chance.random()
        reading, writing = processes.Pipe(duplex=False)
        process = processes.Process(target=work, args=(path, crash_cell, durability, str(count), writing), daemon=True)
        kill(process, reading, writing, delay, account, opening=chance.random() < 0.25)
        store = open_with(path, **keys(crash_cell, durability))
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
