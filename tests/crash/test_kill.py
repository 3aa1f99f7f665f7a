"""``kill -9`` of a process under load, again and again on one directory: nothing confirmed is lost, nothing removed returns."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crash.child import RECORD, THREADS, body_of, keys
from crash.workload import CrashCell
from support import needs_foreign, open_with

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("child.py")
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


def killed(child: subprocess.Popen[bytes], seed: str, delay: float, account: Account, *, opening: bool) -> None:
    """Have a process work, and end it ``delay`` seconds after it is there (``opening``), or after its first confirm."""
    child.stdin.write(f"{seed}\n".encode())
    child.stdin.flush()
    letter, payload = _record(child)
    assert letter == b"P"
    timer = threading.Timer(delay, os.kill, (int.from_bytes(payload), signal.SIGKILL))
    while letter != b"E":
        if timer.ident is None and (opening or letter != b"P"):
            timer.start()
        letter, payload = _record(child)
        account.note(letter, payload)
    timer.join()
    assert int.from_bytes(payload, signed=True) == -signal.SIGKILL, "the process ended by itself: see its standard error"


def _record(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    record = child.stdout.read(RECORD)
    assert len(record) == RECORD, f"the child is gone: {child.wait(10)}"
    return record[:1], record[1:]


@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9")
@pytest.mark.parametrize(("crash_cell", "durability"), CELLS, ids=lambda value: str(value))
def test_killed_under_load(crash_cell, durability, tmp_path, request, tell):
    kills = request.config.getoption("--kills")
    path, account, chance = tmp_path / "store", Account(), random.Random(f"{crash_cell} {durability}")
    command = [sys.executable, CHILD, path, crash_cell.index, crash_cell.content, durability]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            kill = 0
            while kill < kills or (account.confirmed <= kills and kill < 5 * kills):
                # Longer lives where others want the processor so much that most end before anything is confirmed.
                longer = 1 if account.confirmed >= kill else 5
                delay = longer * chance.choice([0.005, 0.03, 0.15]) * chance.random()
                killed(child, f"{kill}", delay, account, opening=chance.random() < 0.25)
                store = open_with(path, **keys(crash_cell, durability))
                entries = list(store.entries())
                with store.client() as client:
                    bodies = client.read_many(entry.msg_id for entry in entries)
                assert store.stats().quarantined == 0
                (store.close if chance.random() < 0.3 else store.abandon)()
                assert all(body == body_of(msg_id) for msg_id, body in bodies.items())
                account.compare(set(bodies), persistent=crash_cell.persistent)
                kill += 1
        finally:
            os.killpg(child.pid, signal.SIGKILL)  # its fork as well, if a check has failed
    tell(f"{crash_cell} {durability} kill -9", f"{kill} kills under load of {THREADS} threads, {account.confirmed} confirms")
    assert account.confirmed > kills
