"""Durable messages per second, on one thread and on sixteen threads. A message counts when it is on disk.

The speed of a disk changes from second to second. So all stores are open at the same time and take turns in short slices.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import lmdb
import rocksdict
from figures import Bound, Figures, Progress
from measure import SEED, Plan, make_messages, new_directory
from ours import open_msgstore
from peer import BATCH, Pair
from profiling import Line, TimedFiles

NAME = "fsync"
TITLE = "Durable messages per second"
ALONE, SHARED = "one by one", "one by one, 16 threads"
"""One message per fsync, on one thread and on each of THREADS."""
BATCHED, SHARED_BATCHED = "by 1000", "by 1000, 16 threads"
"""1000 messages per fsync, on one thread and on each of THREADS. With threads only for bodies of at most SMALL bytes: larger
ones would be a quarter of a gigabyte per slice."""
SMALL = 1024
THREADS = 16
SLICES = 4
"""Slices per round."""
ALONE_MESSAGES = 10
"""Messages per slice."""
SHARED_MESSAGES = 4
"""Messages per slice and thread."""
PROFILED = 20
"""Messages of a profile, as a multiple of those of a slice."""
OF_FLOOR = 0.9
OF_ALONE = 4.0

One = Callable[[bytes, bytes], object]
Batch = Callable[[Sequence[Pair]], object]


class Durable(ABC):
    """Store in ``directory`` that syncs each message before a call returns."""

    name: str

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    @abstractmethod
    def worker(self) -> One:
        """Return a function for one thread that stores one message durably."""

    @abstractmethod
    def batcher(self) -> Batch:
        """Return a function for one thread that stores a batch durably, with one sync if the store supports it."""

    @abstractmethod
    def close(self) -> None: ...


class DurableMsgStore(Durable):
    name = "msgstore"

    def __init__(self, directory: Path, files: TimedFiles | None = None) -> None:
        self.store = open_msgstore(directory, files, index="ets", format="v2", durability="fsync")

    def worker(self) -> One:
        write, flush = self.store.client().write, self.store.flush

        def one(msg_id: bytes, body: bytes) -> None:
            write(msg_id, body)
            flush()

        return one

    def batcher(self) -> Batch:
        write_many, flush = self.store.client().write_many, self.store.flush

        def batch(pairs: Sequence[Pair]) -> None:
            write_many(pairs)
            flush()

        return batch

    def close(self) -> None:
        self.store.close()


class DurableRocksDB(Durable):
    name = "RocksDB"

    def __init__(self, directory: Path) -> None:
        self.db = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))

    def worker(self) -> One:
        put, options = self.db.put, self._synced()
        return lambda msg_id, body: put(msg_id, body, options)

    def batcher(self) -> Batch:
        write, options = self.db.write, self._synced()

        def batch(pairs: Sequence[Pair]) -> None:
            writes = rocksdict.WriteBatch(raw_mode=True)
            for msg_id, body in pairs:
                writes.put(msg_id, body)
            write(writes, options)

        return batch

    @staticmethod
    def _synced() -> rocksdict.WriteOptions:
        options = rocksdict.WriteOptions()
        options.sync = True
        return options

    def close(self) -> None:
        self.db.close()


class DurableLMDB(Durable):
    name = "LMDB"

    def __init__(self, directory: Path) -> None:
        self.env = lmdb.open(str(directory), map_size=2**32)

    def worker(self) -> One:
        def one(msg_id: bytes, body: bytes) -> None:
            with self.env.begin(write=True) as transaction:
                transaction.put(msg_id, body)

        return one

    def batcher(self) -> Batch:
        def batch(pairs: Sequence[Pair]) -> None:
            with self.env.begin(write=True) as transaction:
                transaction.cursor().putmulti(pairs)

        return batch

    def close(self) -> None:
        self.env.close()


class DurableSQLite(Durable):
    name = "SQLite"
    _INSERT = "INSERT INTO messages VALUES (?, ?)"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "messages.db"
        self.open: list[sqlite3.Connection] = []
        db = self._connect()
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE messages (id BLOB PRIMARY KEY, body BLOB NOT NULL)")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=120, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous=FULL")
        self.open.append(db)
        return db

    def worker(self) -> One:
        execute = self._connect().execute
        return lambda msg_id, body: execute(self._INSERT, (msg_id, body))

    def batcher(self) -> Batch:
        db = self._connect()

        def batch(pairs: Sequence[Pair]) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(self._INSERT, pairs)
            db.execute("COMMIT")

        return batch

    def close(self) -> None:
        for db in self.open:
            db.close()


class DurableFloor(Durable):
    """Floor without a store: bodies in one file, whose descriptor the threads share."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        self.fd = os.open(directory / "bodies", os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def worker(self) -> One:
        def one(_: bytes, body: bytes) -> None:
            os.write(self.fd, body)
            os.fsync(self.fd)

        return one

    def batcher(self) -> Batch:
        def batch(pairs: Sequence[Pair]) -> None:
            os.write(self.fd, b"".join([body for _, body in pairs]))
            os.fsync(self.fd)

        return batch

    def close(self) -> None:
        os.close(self.fd)


KINDS: tuple[type[Durable], ...] = (DurableMsgStore, DurableRocksDB, DurableLMDB, DurableSQLite, DurableFloor)


def run(plan: Plan, figures: Figures, progress: Progress) -> None:
    order = random.Random(SEED)
    kinds = [kind for kind in KINDS if plan.has(kind.name)]
    for size in plan.messages:
        for number in range(plan.rounds):
            progress(f"fsync, {size} B, round {number + 1} of {plan.rounds}")
            with contextlib.ExitStack() as stack:
                stores = []
                for kind in kinds:
                    stores.append(store := kind(stack.enter_context(new_directory(plan.directory))))
                    stack.callback(store.close)
                _round(stores, size, order, figures)


def bounds(figures: Figures) -> list[Bound]:
    found = []
    for what, required, ours, others, their in (
        ("one by one / floor's", OF_FLOOR, ALONE, "floor", ALONE),
        ("16 threads / one by one", OF_ALONE, SHARED, "msgstore", ALONE),
    ):
        for size in figures.sizes(NAME):
            above, below = figures.get(NAME, "msgstore", ours, size), figures.get(NAME, others, their, size)
            if above and below:
                found.append(Bound("msgstore", NAME, what, size, "", "at least", required, above.over(below)))
    return found


def profile(plan: Plan, bound: Bound) -> tuple[str, list[Line]]:
    """Measure the time of the store inside and outside fsync, and then the time of the floor."""
    share = min(PROFILED * (SHARED_MESSAGES if bound.what.startswith("16") else ALONE_MESSAGES), plan.most or 10**9)
    threads = THREADS if bound.what.startswith("16") else 1
    pairs = make_messages(bound.size, threads * share, random.Random(SEED))
    files = TimedFiles()
    with new_directory(plan.directory) as directory, contextlib.closing(DurableMsgStore(directory, files)) as store:
        store.worker()(*make_messages(bound.size, 1, random.Random(SEED + 1))[0])
        files.events.clear()
        rate = _shared(store, pairs) if threads > 1 else _alone(store, pairs)
        events = list(files.events)
    with new_directory(plan.directory) as directory, contextlib.closing(DurableFloor(directory)) as floor:
        bare = _shared(floor, pairs) if threads > 1 else _alone(floor, pairs)
    syncs = [event for event in events if event.name == "sync"]
    writes = [event for event in events if event.name == "pwrite"]
    inside, writing, whole = (sum(e.seconds for e in syncs), sum(e.seconds for e in writes), len(pairs) / rate)
    scale = 1e6 / len(pairs)
    lines = [
        Line("wall time per message", whole * scale, "us"),
        Line("of that, inside fsync (one at a time)", inside * scale, "us"),
        Line("inside pwrite", writing * scale, "us"),
        Line("the rest: locks, threads, Python", (whole - inside - writing) * scale, "us"),
        Line("one fsync", inside * 1e6 / max(len(syncs), 1), "us"),
        Line("messages per fsync", len(pairs) / max(len(syncs), 1), ""),
        Line("the floor's wall time per message", 1e6 / bare, "us"),
    ]
    return f"{len(pairs):,} messages, {threads} threads; file operations timed", lines


def _round(stores: Sequence[Durable], size: int, order: random.Random, figures: Figures) -> None:
    """Run each measurement in slices, in which the stores take turns. First each store is warmed up with one message."""
    for store in stores:
        store.worker()(*make_messages(size, 1, order)[0])
    for number in range(SLICES):
        for store in order.sample(stores, len(stores)):
            alone = _alone(store, make_messages(size, ALONE_MESSAGES, order))
            figures.add(NAME, store.name, ALONE, size, "1/s", alone)
        for store in order.sample(stores, len(stores)):
            shared = _shared(store, make_messages(size, THREADS * SHARED_MESSAGES, order))
            figures.add(NAME, store.name, SHARED, size, "1/s", shared)
        if number == 0:  # these write many bytes, so only once per round
            for store in order.sample(stores, len(stores)):
                batched = _batched(store, make_messages(size, BATCH, order))
                figures.add(NAME, store.name, BATCHED, size, "1/s", batched)
            for store in order.sample(stores, len(stores)) if size <= SMALL else ():
                batches = [make_messages(size, BATCH, order) for _ in range(THREADS)]
                figures.add(NAME, store.name, SHARED_BATCHED, size, "1/s", _shared_batched(store, batches))


def _alone(store: Durable, pairs: Sequence[Pair]) -> float:
    one = store.worker()
    start = time.perf_counter()
    for msg_id, body in pairs:
        one(msg_id, body)
    return len(pairs) / (time.perf_counter() - start)


def _batched(store: Durable, pairs: Sequence[Pair]) -> float:
    batch = store.batcher()
    start = time.perf_counter()
    batch(pairs)
    return len(pairs) / (time.perf_counter() - start)


def _shared(store: Durable, pairs: Sequence[Pair]) -> float:
    ones = [store.worker() for _ in range(THREADS)]

    def work(at: int) -> None:
        one = ones[at]
        for msg_id, body in pairs[at::THREADS]:
            one(msg_id, body)

    return len(pairs) / _run_threads(work)


def _shared_batched(store: Durable, batches: Sequence[Sequence[Pair]]) -> float:
    batchers = [store.batcher() for _ in batches]
    return sum(map(len, batches)) / _run_threads(lambda at: batchers[at](batches[at]))


def _run_threads(work: Callable[[int], object]) -> float:
    """Run ``work(number)`` on all threads. Return the seconds from their common start to the end of the last one.

    Raises the error of a thread.
    """
    started: list[float] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS, action=lambda: started.append(time.perf_counter()))

    def run_one(at: int) -> None:
        barrier.wait()
        try:
            work(at)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_one, args=(at,)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started[0]
    if errors:
        raise errors[0]
    return took
