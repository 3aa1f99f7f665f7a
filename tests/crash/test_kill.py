"""``kill -9`` of a process under load, again and again on one directory: nothing confirmed is lost, nothing removed returns.

The process opens the store, and workers of the stress test use it until it is killed. They tell what happens through a pipe, in
records of one letter and a message id (see ``Task.journal``), each written by one system call, so that nothing that was told
is lost with the process.
"""

from __future__ import annotations

import contextlib
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

from attempts import start_process
from crash.history import is_persistent, keys_of
from stress.worker import USUAL, Board, Task, Worker, WorkerReport, body_of
from support import Cell, needs_foreign, open_with

pytestmark = pytest.mark.crash

CELLS = [
    (Cell("ets", "v2"), "os"),
    (Cell("ets", "v2", "checksum"), "fsync"),
    (Cell("lmdb", "v2"), "os"),
    (Cell("lmdb", "v2", "checksum"), "os"),
    (Cell("lmdb", "v2"), "fsync"),
    pytest.param(Cell("sqlite", "ledger"), "os", marks=needs_foreign),
    pytest.param(Cell("sqlite", "v2"), "fsync", marks=needs_foreign),
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
        store, findings, board = open_with(path, **keys), WorkerReport(), Board(THREADS)
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


def told_until_killed(arguments: tuple[Any, ...], delay: float, *, opening: bool) -> list[tuple[bytes, bytes]]:
    """Kill a process ``delay`` seconds after its start (``opening``), or after its first record. Return what it told."""
    process, reading = start_process(work, *arguments)
    timer, records = threading.Timer(delay, process.kill), []
    if opening:
        timer.start()
    with reading, contextlib.suppress(EOFError):
        while True:
            record = reading.recv_bytes()
            if timer.ident is None:
                timer.start()
            records.append((record[:1], record[1:]))
    process.join()
    timer.cancel()
    assert process.exitcode == -signal.SIGKILL, "the process ended by itself: see its standard error"
    return records


@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9")
@pytest.mark.parametrize(("crash_cell", "durability"), CELLS, ids=lambda value: str(value))
def test_killed_under_load(crash_cell, durability, tmp_path, request, report):
    kills = request.config.getoption("--kills")
    path, chance = tmp_path / "store", random.Random(f"{crash_cell} {durability}")
    keys = keys_of(crash_cell) | USUAL | {"durability": durability, "sync_interval": "1ms"}
    known: dict[bytes, bytes] = {}
    """Id to its last letter: confirmed (C), about to be removed (R), removed, and a flush has returned since (D)."""
    count = confirmed = 0
    while count < kills or (confirmed <= kills and count < 5 * kills):
        # Longer lives where others want the processor so much that most end before anything is confirmed.
        longer = 1 if confirmed >= count else 5
        delay = longer * chance.choice([0.005, 0.03, 0.15]) * chance.random()
        for letter, msg_id in told_until_killed((path, keys, str(count)), delay, opening=chance.random() < 0.25):
            confirmed += letter == b"C"
            if letter != b"C" or known.get(msg_id) not in (b"R", b"D"):  # a write that was removed is confirmed, too
                known[msg_id] = letter
        store = open_with(path, **keys)
        with store.client() as client:
            bodies = client.read_many([entry.msg_id for entry in store.entries()])
        assert store.stats().quarantined == 0
        (store.close if chance.random() < 0.3 else store.abandon)()
        assert all(body == body_of(msg_id) for msg_id, body in bodies.items())
        assert not [i.hex() for i, letter in known.items() if letter == b"C" and i not in bodies], "confirmed messages are lost"
        dead = {i: letter for i, letter in known.items() if letter == b"D"}
        if is_persistent(crash_cell):
            assert not [i.hex() for i in dead.keys() & bodies.keys()], "removed messages returned"
        known = {**dead, **dict.fromkeys(bodies, b"C")}
        count += 1
    report("crash harness", f"{crash_cell} {durability}: {count} kills under load of {THREADS} threads, {confirmed} confirms")
    assert confirmed > kills
