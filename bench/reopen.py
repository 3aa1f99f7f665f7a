"""Time from opening a store to its first answer, after its process was killed and after a clean shutdown.

One process fills the store and kills itself with SIGKILL. A second one opens it (dirty) and closes it; a third one opens it
again (clean). The clock runs from the call that opens to the answer of the first get. Before that, each process opens an empty
store of the same kind, so that imports, plugins and first calls are not counted.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import children
from figures import Bound, Figures, Progress
from measure import SEED, Plan, check, new_directory
from ours import MsgStore
from peer import Pair, Peer
from profiling import Line, TimedFiles, own_times
from rivals import LMDB, RocksDB, SQLite

NAME = "reopen"
TITLE = "Milliseconds from opening to the first answer, 64-byte bodies"
MESSAGES = 1_000_000
SIZE = 64
ROUNDS = 3
"""Maximum number of rounds: each round fills every store again."""
CHECKED = 50
DIRTY, CLEAN = "dirty", "clean"
MOST_DIRTY = {"msgstore": 500.0, "msgstore, lmdb": 20.0}
"""Required maximum in milliseconds."""


class LmdbMsgStore(MsgStore):
    def __init__(self, directory: Path, files: TimedFiles | None = None) -> None:
        super().__init__(directory, files, index="lmdb")


KINDS: dict[str, tuple[str, Callable[[Path], Peer]]] = {
    "msgstore": ("msgstore", MsgStore),
    "msgstore, lmdb": ("msgstore", LmdbMsgStore),
    "RocksDB": ("RocksDB", RocksDB),
    "LMDB": ("LMDB", LMDB),
    "SQLite": ("SQLite", SQLite),
}
"""Row to (its name in --stores, function that opens it)."""


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    order = random.Random(SEED)
    count = plan.count(MESSAGES)
    names = [name for name, (store, _) in KINDS.items() if plan.has(store)]
    rounds = min(plan.rounds, ROUNDS)
    for number in range(rounds):
        for name in order.sample(names, len(names)):
            progress(f"reopen, {count:,} messages, round {number + 1} of {rounds}: {name}")
            with new_directory(plan.directory) as directory, new_directory(plan.directory) as empty:
                children.call_killed(fill, name, str(directory), count)
                for how in (DIRTY, CLEAN):
                    took = children.call(reopen, name, str(directory), str(empty / how), count)
                    figures.add(NAME, name, how, SIZE, "ms", took)


def bounds(figures: Figures) -> list[Bound]:
    return [
        Bound(name, NAME, DIRTY, SIZE, "ms", "at most", most, figure.value)
        for name, most in MOST_DIRTY.items()
        if (figure := figures.get(NAME, name, DIRTY, SIZE))
    ]


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Profile two dirty openings: functions of the first under ``cProfile``, file operations of the second."""
    count = plan.count(MESSAGES)
    lines: list[Line] = []
    for what in (_profile_functions, _profile_files):
        with new_directory(plan.directory) as directory, new_directory(plan.directory) as empty:
            children.call_killed(fill, bound.store, str(directory), count)
            lines += [Line(*line) for line in children.call(what, bound.store, str(directory), str(empty / DIRTY))]
    return f"{count:,} messages; own time of functions under cProfile, then file operations without it", lines


def _profile_functions(name: str, directory: str, empty: str) -> list[tuple[str, float, str]]:
    """Return the functions of an opening by own time. Runs in a child process."""
    open_store = _warmed_up(name, empty)
    peers: list[Peer] = []
    lines = own_times(lambda: peers.append(open_store(Path(directory))), 1, "ms")
    peers[0].close()
    return [(line.what, line.value, line.unit) for line in lines]


def _profile_files(name: str, directory: str, empty: str) -> list[tuple[str, float, str]]:
    """Return the file operations of an opening. Runs in a child process."""
    _warmed_up(name, empty)
    kind, files = KINDS[name][1], TimedFiles()
    start = time.perf_counter()
    peer = kind(Path(directory), files)  # type: ignore[call-arg]
    took = time.perf_counter() - start
    lines = [(f"file operation {line.what}", line.value, line.unit) for line in files.lines(1, "ms")]
    lines.append(("the rest", (took - files.seconds()) * 1e3, "ms"))
    peer.close()
    return lines


def _warmed_up(name: str, empty: str) -> Callable[[Path], Peer]:
    """Return the function that opens the store, after a warm-up with an empty one."""
    open_store = KINDS[name][1]
    Path(empty).mkdir()
    first = open_store(Path(empty))
    first.get_one(bytes(16))
    first.close()
    return open_store


def message(number: int) -> Pair:
    """Return pseudo-random message ``number``, which is the same in every process."""
    body = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=SIZE).digest()
    return hashlib.blake2b(body, digest_size=16).digest(), body


def fill(name: str, directory: str, count: int) -> None:
    """Write all messages, and kill this process when the operating system has them. Runs in a child process."""
    peer = KINDS[name][1](Path(directory))
    peer.put_all([message(number) for number in range(count)])
    if isinstance(peer, MsgStore):
        peer.store.roll()  # otherwise segments sealed in the last two seconds would have no hint files
    os.kill(os.getpid(), signal.SIGKILL)


def reopen(name: str, directory: str, empty: str, count: int) -> float:
    """Return the milliseconds to the first answer. Then check some messages, and close the store. Runs in a child process."""
    open_store = _warmed_up(name, empty)
    numbers = [*random.Random(count).sample(range(count), min(CHECKED, count)), count - 1]
    wanted = message(numbers[0])
    start = time.perf_counter()
    peer = open_store(Path(directory))
    body = peer.get_one(wanted[0])
    took = time.perf_counter() - start
    if body != wanted[1]:
        raise RuntimeError(f"{name}: get returned another body than the one that was put")
    check(peer, [message(number) for number in numbers])
    peer.close()
    return took * 1000
