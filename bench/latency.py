"""Latency of single calls of ``write``, as fast as possible. The clock is read before and after each call.

A peer collects batches of 1000, so its 1000th put includes the commit of the batch.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sqlite3
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence

import lmdb
import rocksdict
from figures import Bound, Figures, Progress
from measure import SEED, Plan, make_messages, new_directory
from ours import MsgStore
from peer import BATCH, Pair, Peer
from peers import RIVALS
from profiling import Line, TimedFiles, garbage_collections, slowest_calls
from rivals import LMDB, RocksDB, SQLite

NAME = "latency"
TITLE = "Microseconds per call of write"
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
MOST_AT_1_KIB = 200.0
"""Required maximum of msgstore's p99.99, in microseconds."""
CLOCK = "clock alone"
"""Row of two readings of the clock without a call between them. Every other row includes this cost and its interruptions."""

STORES = ("msgstore", *RIVALS)
Put = Callable[[bytes, bytes], object]


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    order = random.Random(SEED)
    kinds = [kind for kind in plan.peers if kind.name in STORES]
    for size, count in plan.messages.items():
        pairs = make_messages(size, count, random.Random(SEED + size))
        for number in range(plan.rounds):
            note(figures, CLOCK, size, time_nothing(count))
            order.shuffle(kinds)
            for kind in kinds:
                progress(f"latency, {size} B, round {number + 1} of {plan.rounds}: {kind.name}")
                with new_directory(plan.directory) as directory:
                    peer = kind(directory)
                    try:
                        with putting(peer) as put:
                            samples = time_calls(put, pairs)
                        note(figures, kind.name, size, samples)
                    finally:
                        peer.close()


def bounds(figures: Figures) -> list[Bound]:
    figure = figures.get(NAME, "msgstore", "p99.99", 1024)
    return [Bound("msgstore", NAME, "p99.99", 1024, "us", "at most", MOST_AT_1_KIB, figure.value)] if figure else []


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """List the slowest calls, with the times of the file operations and Python garbage collections in them."""
    pairs = make_messages(bound.size, plan.messages[bound.size], random.Random(SEED))
    files, starts, samples = TimedFiles(), [0.0] * len(pairs), [0.0] * len(pairs)
    clock = time.perf_counter
    with new_directory(plan.directory) as directory:
        peer = MsgStore(directory, files)
        put = peer.client.write
        gc.collect()
        with garbage_collections(files.events):
            for at, (msg_id, body) in enumerate(pairs):
                starts[at] = start = clock()
                put(msg_id, body)
                samples[at] = clock() - start
        peer.close()
    lines = slowest_calls(starts, samples, files.events)
    return f"{len(pairs):,} calls; the slowest, with microseconds from the start of each call", lines


def note(figures: Figures, store: str, size: int, samples: array[int]) -> None:
    for name, value in percentiles(samples).items():
        figures.add(NAME, store, name, size, "us", value / 1000)


def percentiles(samples: array[int]) -> dict[str, float]:
    """Return the percentiles SHARES of the samples by nearest rank, and the maximum."""
    ranked = sorted(samples)
    found = {name: float(ranked[max(-int(-share * len(ranked) // 1), 1) - 1]) for name, share in SHARES.items()}
    return found | {"max": float(ranked[-1])}


def time_calls(put: Put, pairs: Sequence[Pair]) -> array[int]:
    """Return the nanoseconds of each call."""
    samples = array("q", bytes(8 * len(pairs)))
    clock = time.perf_counter_ns
    gc.collect()
    for at, (msg_id, body) in enumerate(pairs):
        start = clock()
        put(msg_id, body)
        samples[at] = clock() - start
    return samples


def time_nothing(count: int) -> array[int]:
    samples = array("q", bytes(8 * count))
    clock = time.perf_counter_ns
    for at in range(count):
        start = clock()
        samples[at] = clock() - start
    return samples


BatchWriter = Generator[None, Pair, None]
"""Generator that receives one message at a time, and commits each batch when it receives the 1000th."""


def _rocksdb(db: rocksdict.Rdict) -> BatchWriter:
    while True:
        writes = rocksdict.WriteBatch(raw_mode=True)
        for _ in range(BATCH):
            writes.put(*(yield))
        db.write(writes)


def _lmdb(env: lmdb.Environment) -> BatchWriter:
    while True:
        with env.begin(write=True) as transaction:
            for _ in range(BATCH):
                transaction.put(*(yield))


def _sqlite(db: sqlite3.Connection) -> BatchWriter:
    while True:
        db.execute("BEGIN")
        for _ in range(BATCH):
            db.execute("INSERT INTO messages VALUES (?, ?)", (yield))
        db.execute("COMMIT")


@contextlib.contextmanager
def putting(peer: Peer) -> Iterator[Put]:
    """Yield the function that puts one message. An incomplete batch at the end is dropped."""
    if isinstance(peer, MsgStore):
        yield peer.client.write
        return
    if isinstance(peer, RocksDB):
        writer = _rocksdb(peer.db)
    elif isinstance(peer, LMDB):
        writer = _lmdb(peer.env)
    else:
        assert isinstance(peer, SQLite)
        writer = _sqlite(peer.db)
    next(writer)
    send = writer.send
    with contextlib.closing(writer):
        yield lambda msg_id, body: send((msg_id, body))
