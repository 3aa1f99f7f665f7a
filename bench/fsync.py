"""Messages that are on the disk when the call returns: how many a second, one thread alone and sixteen at once.

A disk's speed changes from one second to the next, so all stores are open at the same time and take turns in short slices.
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
from measure import SEED, Plan, fresh_directory, make_messages
from peers import BATCH, Pair

import msgstore

NAME = "fsync"
TITLE = "Durable messages a second"
ALONE, SHARED, BATCHED = "one by one", "one by one, 16 threads", "by 1000"
"""A message and its fsync at a time; the same on each of THREADS; 1000 messages an fsync."""
THREADS = 16
SLICES = 4
"""In each round."""
ALONE_MESSAGES = 10
"""In a slice."""
SHARED_MESSAGES = 4
"""In a slice, by each thread."""
OF_FLOOR = 0.9
OF_ALONE = 4.0

One = Callable[[bytes, bytes], object]


class Durable(ABC):
    """A store in ``directory`` that syncs before it answers."""

    name: str

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    @abstractmethod
    def worker(self) -> One:
        """For one thread: what stores a message durably."""

    @abstractmethod
    def batch(self, pairs: Sequence[Pair]) -> None:
        """All, durable when it returns, with one sync if the store can."""

    @abstractmethod
    def close(self) -> None: ...


class DurableMsgStore(Durable):
    name = "msgstore"

    def __init__(self, directory: Path) -> None:
        self.store = msgstore.open_store(directory, index="ets", format="v2", durability="fsync")
        self.client = self.store.client()

    def worker(self) -> One:
        write, flush = self.store.client().write, self.store.flush

        def one(msg_id: bytes, body: bytes) -> None:
            write(msg_id, body)
            flush()

        return one

    def batch(self, pairs: Sequence[Pair]) -> None:
        self.client.write_many(pairs)
        self.store.flush()

    def close(self) -> None:
        self.store.close()


class DurableRocksDB(Durable):
    name = "RocksDB"

    def __init__(self, directory: Path) -> None:
        self.db = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))

    def worker(self) -> One:
        put, options = self.db.put, self._synced()
        return lambda msg_id, body: put(msg_id, body, options)

    def batch(self, pairs: Sequence[Pair]) -> None:
        writes = rocksdict.WriteBatch(raw_mode=True)
        for msg_id, body in pairs:
            writes.put(msg_id, body)
        self.db.write(writes, self._synced())

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

    def batch(self, pairs: Sequence[Pair]) -> None:
        with self.env.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs)

    def close(self) -> None:
        self.env.close()


class DurableSQLite(Durable):
    name = "SQLite"
    _INSERT = "INSERT INTO messages VALUES (?, ?)"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "messages.db"
        self.open: list[sqlite3.Connection] = []
        self.db = self._connect()
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("CREATE TABLE messages (id BLOB PRIMARY KEY, body BLOB NOT NULL)")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=120, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous=FULL")
        self.open.append(db)
        return db

    def worker(self) -> One:
        execute = self._connect().execute
        return lambda msg_id, body: execute(self._INSERT, (msg_id, body))

    def batch(self, pairs: Sequence[Pair]) -> None:
        self.db.execute("BEGIN")
        self.db.executemany(self._INSERT, pairs)
        self.db.execute("COMMIT")

    def close(self) -> None:
        for db in self.open:
            db.close()


class DurableFloor(Durable):
    """Bodies end to end in one file, whose descriptor the threads share."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        self.fd = os.open(directory / "bodies", os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def worker(self) -> One:
        def one(_: bytes, body: bytes) -> None:
            os.write(self.fd, body)
            os.fsync(self.fd)

        return one

    def batch(self, pairs: Sequence[Pair]) -> None:
        os.write(self.fd, b"".join([body for _, body in pairs]))
        os.fsync(self.fd)

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
                    stores.append(store := kind(stack.enter_context(fresh_directory(plan.directory))))
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


def _round(stores: Sequence[Durable], size: int, order: random.Random, figures: Figures) -> None:
    """Each measurement in slices, in which the stores take turns; each store is warmed up with one message."""
    for store in stores:
        store.worker()(*make_messages(size, 1, order)[0])
    for number in range(SLICES):
        for store in order.sample(stores, len(stores)):
            alone = _alone(store, make_messages(size, ALONE_MESSAGES, order))
            figures.add(NAME, store.name, ALONE, size, "1/s", alone)
        for store in order.sample(stores, len(stores)):
            shared = _shared(store, make_messages(size, THREADS * SHARED_MESSAGES, order))
            figures.add(NAME, store.name, SHARED, size, "1/s", shared)
        if number == 0:  # these write much: once a round
            for store in order.sample(stores, len(stores)):
                batched = _batched(store, make_messages(size, BATCH, order))
                figures.add(NAME, store.name, BATCHED, size, "1/s", batched)


def _alone(store: Durable, pairs: Sequence[Pair]) -> float:
    one = store.worker()
    start = time.perf_counter()
    for msg_id, body in pairs:
        one(msg_id, body)
    return len(pairs) / (time.perf_counter() - start)


def _batched(store: Durable, pairs: Sequence[Pair]) -> float:
    start = time.perf_counter()
    store.batch(pairs)
    return len(pairs) / (time.perf_counter() - start)


def _shared(store: Durable, pairs: Sequence[Pair]) -> float:
    """From the moment at which all threads may begin until the last one has ended. A thread's error is raised here."""
    begun: list[float] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS, action=lambda: begun.append(time.perf_counter()))

    def work(one: One, share: Sequence[Pair]) -> None:
        barrier.wait()
        try:
            for msg_id, body in share:
                one(msg_id, body)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(store.worker(), pairs[at::THREADS])) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begun[0]
    if errors:
        raise errors[0]
    return len(pairs) / took
