"""A process that is killed under load.

It opens the store, and workers of the stress test use it until somebody kills it. They tell what happens through a pipe, in
records of one letter and a message id (see ``Task.journal``), each written by one system call, so that nothing that was told
is lost with the process.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from crash.workload import CrashCell
from stress.account import Board, Findings
from stress.running import Options
from stress.worker import Task, Worker
from support import open_with

THREADS = 3
LIVING = 100
"""Ids that a thread keeps alive, about."""
REMOVED = 100
"""References that are given back between two collections, about."""
WRONG = 3
"""Exit status of a process in which anything was not as it should be."""


def keys(cell: CrashCell, durability: str) -> dict[str, Any]:
    return cell.keys | Options(0, {"durability": durability, "sync_interval": "1ms"}).all_keys


def work(path: Path, cell: CrashCell, durability: str, seed: str, pipe: Connection) -> None:
    """Never returns."""

    def journal(letter: bytes, ids: Iterable[bytes]) -> None:
        for msg_id in ids:
            pipe.send_bytes(letter + msg_id)

    try:
        store, findings = open_with(path, **keys(cell, durability)), Findings()
        owned: list[dict[bytes, int]] = [{} for _ in range(THREADS)]
        for entry in store.entries():
            owned[entry.msg_id[7] % THREADS][entry.msg_id] = entry.references
        board, barrier = Board(THREADS), threading.Barrier(THREADS)
        tasks = [
            Task(number, f"{seed} {number}", 10**9, LIVING, 0, REMOVED, mine, journal) for number, mine in enumerate(owned)
        ]
        workers = [Worker(task, store, board, barrier, findings) for task in tasks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(findings, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    os._exit(WRONG)
