"""The stores that are compared, one class each behind one tiny interface, and the raw floor as two more of them.

Nothing here calls fsync: that is fsync.py's. Whoever has batches gets batches of 1000 messages; msgstore gets one call a
message. Loops hold nothing but the store's own calls, bound to local names, so that each store shows its best from Python.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import rocksdict

import msgstore
from msgstore.config import store_config
from msgstore.engine.opening import open_configured
from msgstore.files import Files

BATCH = 1000
"""Operations in a peer's batch or transaction."""
LAG = 500
"""A lifecycle is put, and LAG messages later got and removed. A peer's batch is LAG puts and LAG removals: BATCH."""
CHUNK = 2**20
"""Bytes that the floor writes, or reads for read_many, at once."""
OPERATIONS: tuple[str, ...] = ("put", "get", "read_many", "remove", "lifecycle")
"""Those that are timed for each store here; the others have a module each."""

Pair = tuple[bytes, bytes]
"""A message: its id, 16 bytes, and its body."""


def batches(items: Sequence[Any], size: int = BATCH) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


class Peer(ABC):
    """An open, empty store in ``directory``. What ``prepare_*`` and ``settle`` do is not timed; the ``*_all`` are."""

    name: ClassVar[str]
    how: ClassVar[str]
    """One line for the reader of the table: calls, batches, options."""
    operations: ClassVar[Sequence[str]] = OPERATIONS
    """Those that are measured."""

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    def prepare_puts(self, pairs: Sequence[Pair]) -> Sequence[Any]:
        """What ``put_all`` takes."""
        return pairs

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        """What ``get_all`` takes, in the order of ``ids``."""
        return ids

    @abstractmethod
    def put_all(self, pairs: Sequence[Any]) -> None:
        """Store all; when it returns, all are with the operating system."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Let work in the background end, so that it is not counted as the next operation's."""

    @abstractmethod
    def look(self, msg_id: bytes) -> bytes | None:
        """One body, None if absent: for checking that the store does what is timed."""

    @abstractmethod
    def get_all(self, targets: Sequence[Any]) -> None:
        """Get each, one call a message; bodies are bytes objects and are dropped."""

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        """Get all in batches, each as a dict or list of bodies, in the order of writing."""
        raise NotImplementedError

    def remove_all(self, ids: Sequence[bytes]) -> None:
        raise NotImplementedError

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        """Put each; LAG messages later get it and remove it."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None: ...


class MsgStore(Peer):
    name = "msgstore"
    how = "index ets, format v2, durability os; one call a message; put, remove and lifecycle end with store.flush()"

    def __init__(self, directory: Path, files: Files | None = None, **options: Any) -> None:
        """``options``: keys of the configuration. ``files``: for a profile."""
        self.store = open_msgstore(directory, files, **({"index": "ets", "format": "v2", "durability": "os"} | options))
        self.client = self.store.client()

    def put_all(self, pairs: Sequence[Any]) -> None:
        write = self.client.write
        for msg_id, body in pairs:
            write(msg_id, body)
        self.store.flush()

    def settle(self) -> None:
        self.store.flush()
        if self.store.stats().pending:
            raise RuntimeError("messages are pending after a flush: gets would not read the disk")

    def look(self, msg_id: bytes) -> bytes | None:
        try:
            return self.client.read(msg_id)
        except msgstore.MessageNotFound:
            return None

    def get_all(self, targets: Sequence[Any]) -> None:
        read = self.client.read
        for msg_id in targets:
            read(msg_id)

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            self.client.read_many(batch)

    def remove_all(self, ids: Sequence[bytes]) -> None:
        remove = self.client.remove
        for msg_id in ids:
            remove([msg_id])
        self.store.flush()

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        write, read, remove = self.client.write, self.client.read, self.client.remove
        for msg_id, body in pairs[:LAG]:
            write(msg_id, body)
        for (msg_id, body), (old, _) in zip(pairs[LAG:], pairs, strict=False):
            write(msg_id, body)
            read(old)
            remove([old])
        for old, _ in pairs[-LAG:]:
            read(old)
            remove([old])
        self.store.flush()

    def close(self) -> None:
        self.client.close()
        self.store.close()


def open_msgstore(directory: Path, files: Files | None = None, **keys: Any) -> msgstore.Store:
    """``open_store``; with a file layer of the bench's own if one is given."""
    if files is None:
        return msgstore.open_store(directory, **keys)
    config = store_config({"path": directory, **keys}, "bench", Path())
    return open_configured(config, msgstore.load_catalogue(), files=files)


class MappedMsgStore(MsgStore):
    name = "msgstore mmap"
    how = 'the same with reads = "mmap"'
    operations: ClassVar[Sequence[str]] = ("get",)

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        super().__init__(directory, files, reads="mmap")


class RocksDB(Peer):
    name = "RocksDB"
    how = "rocksdict, raw mode; WriteBatch of 1000, WAL on, not synced; its defaults otherwise; read_many: multi-get of 1000"

    def __init__(self, directory: Path) -> None:
        self.db = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))

    def put_all(self, pairs: Sequence[Any]) -> None:
        for batch in batches(pairs):
            writes = rocksdict.WriteBatch(raw_mode=True)
            put = writes.put
            for msg_id, body in batch:
                put(msg_id, body)
            self.db.write(writes)

    def settle(self) -> None:
        watched = ("mem-table-flush-pending", "num-running-flushes", "compaction-pending", "num-running-compactions")
        for _ in range(1000):
            if not any(self.db.property_int_value(f"rocksdb.{name}") for name in watched):
                return
            time.sleep(0.01)

    def look(self, msg_id: bytes) -> bytes | None:
        body: bytes | None = self.db.get(msg_id)
        return body

    def get_all(self, targets: Sequence[Any]) -> None:
        get = self.db.get
        for msg_id in targets:
            get(msg_id)

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            self.db.get(list(batch))

    def remove_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            writes = rocksdict.WriteBatch(raw_mode=True)
            delete = writes.delete
            for msg_id in batch:
                delete(msg_id)
            self.db.write(writes)

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        get = self.db.get
        old: Sequence[Pair] = []
        for new in itertools.chain(batches(pairs, LAG), [[]]):
            writes = rocksdict.WriteBatch(raw_mode=True)
            put, delete = writes.put, writes.delete
            for msg_id, _ in old:
                get(msg_id)
                delete(msg_id)
            for msg_id, body in new:
                put(msg_id, body)
            self.db.write(writes)
            old = new

    def close(self) -> None:
        self.db.close()


class LMDB(Peer):
    name = "LMDB"
    how = "transactions of 1000, cursor.putmulti, sync off, writemap; gets in one read transaction; read_many: getmulti of 1000"

    def __init__(self, directory: Path, *, writemap: bool = True) -> None:
        self.env = lmdb.open(str(directory), map_size=2**32, sync=False, writemap=writemap)

    def put_all(self, pairs: Sequence[Any]) -> None:
        for batch in batches(pairs):
            with self.env.begin(write=True) as transaction:
                transaction.cursor().putmulti(batch)

    def look(self, msg_id: bytes) -> bytes | None:
        with self.env.begin() as transaction:
            body: bytes | None = transaction.get(msg_id)
            return body

    def get_all(self, targets: Sequence[Any]) -> None:
        with self.env.begin() as transaction:
            get = transaction.get
            for msg_id in targets:
                get(msg_id)

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        with self.env.begin() as transaction:
            cursor = transaction.cursor()
            for batch in batches(ids):
                cursor.getmulti(batch)

    def remove_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            with self.env.begin(write=True) as transaction:
                delete = transaction.delete
                for msg_id in batch:
                    delete(msg_id)

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        old: Sequence[Pair] = []
        for new in itertools.chain(batches(pairs, LAG), [[]]):
            with self.env.begin(write=True) as transaction:
                get, delete = transaction.get, transaction.delete
                for msg_id, _ in old:
                    get(msg_id)
                    delete(msg_id)
                transaction.cursor().putmulti(new)
            old = new

    def close(self) -> None:
        self.env.close()


class SQLite(Peer):
    name = "SQLite"
    how = "WAL, synchronous=OFF; transactions of 1000 with executemany; read_many: WHERE id IN (1000 ids)"

    def __init__(self, directory: Path) -> None:
        self.db = sqlite3.connect(directory / "messages.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.execute("CREATE TABLE IF NOT EXISTS messages (id BLOB PRIMARY KEY, body BLOB NOT NULL)")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN")
        yield
        self.db.execute("COMMIT")

    def put_all(self, pairs: Sequence[Any]) -> None:
        for batch in batches(pairs):
            with self.transaction():
                self.db.executemany("INSERT INTO messages VALUES (?, ?)", batch)

    def look(self, msg_id: bytes) -> bytes | None:
        row = self.db.execute("SELECT body FROM messages WHERE id = ?", (msg_id,)).fetchone()
        return row and bytes(row[0])

    def get_all(self, targets: Sequence[Any]) -> None:
        execute = self.db.execute
        for msg_id in targets:
            execute("SELECT body FROM messages WHERE id = ?", (msg_id,)).fetchone()

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            places = ",".join("?" * len(batch))
            self.db.execute(f"SELECT id, body FROM messages WHERE id IN ({places})", batch).fetchall()

    def remove_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            with self.transaction():
                self.db.executemany("DELETE FROM messages WHERE id = ?", ((msg_id,) for msg_id in batch))

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        execute = self.db.execute
        old: Sequence[Pair] = []
        for new in itertools.chain(batches(pairs, LAG), [[]]):
            with self.transaction():
                for msg_id, _ in old:
                    execute("SELECT body FROM messages WHERE id = ?", (msg_id,)).fetchone()
                self.db.executemany("DELETE FROM messages WHERE id = ?", ((msg_id,) for msg_id, _ in old))
                self.db.executemany("INSERT INTO messages VALUES (?, ?)", new)
            old = new

    def close(self) -> None:
        self.db.close()


class Floor(Peer):
    """No store at all: bodies end to end in one file."""

    name = "floor"
    how = (
        "put: os.write of 1 MiB, joined beforehand; get: os.pread at known places; "
        "read_many: os.pread of 1 MiB, cut into bodies; lifecycle: a dict in memory"
    )
    operations: ClassVar[Sequence[str]] = ("put", "get", "read_many", "lifecycle")

    def __init__(self, directory: Path) -> None:
        self.fd = os.open(directory / "bodies", os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
        self.places: dict[bytes, tuple[int, int, int]] = {}
        """Id to (descriptor, size, offset); entries are made in the order of writing."""

    def prepare_puts(self, pairs: Sequence[Pair]) -> Sequence[Any]:
        end = 0
        for msg_id, body in pairs:
            self.places[msg_id] = self.fd, len(body), end
            end += len(body)
        count = max(CHUNK // max(len(pairs[0][1]), 1), 1)
        return [b"".join([body for _, body in batch]) for batch in batches(pairs, count)]

    def put_all(self, pairs: Sequence[Any]) -> None:
        for chunk in pairs:
            os.write(self.fd, chunk)

    def look(self, msg_id: bytes) -> bytes | None:
        return os.pread(*self.places[msg_id])

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        return [self.places[msg_id] for msg_id in ids]

    def get_all(self, targets: Sequence[Any]) -> None:
        pread = os.pread
        for fd, size, offset in targets:
            pread(fd, size, offset)

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        fd, size, offset = self.places[ids[0]]
        step, end = max(CHUNK // size, 1) * size, offset + len(ids) * size
        for start in range(offset, end, step):
            data = os.pread(fd, min(step, end - start), start)
            [data[at : at + size] for at in range(0, len(data), size)]

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        bodies = dict(pairs[:LAG])
        for (msg_id, body), (old, _) in zip(pairs[LAG:], pairs, strict=False):
            bodies[msg_id] = body
            bodies[old]
            del bodies[old]
        for old, _ in pairs[-LAG:]:
            bodies[old]
            del bodies[old]

    def close(self) -> None:
        os.close(self.fd)


class LookupFloor(Floor):
    """What any store in Python pays at least for a get by id when its index is a dict."""

    name = "look-up + pread"
    how = "dict from id to (descriptor, size, offset), then os.pread"
    operations: ClassVar[Sequence[str]] = ("get",)

    def prepare_gets(self, ids: Sequence[bytes]) -> Sequence[Any]:
        return ids

    def get_all(self, targets: Sequence[Any]) -> None:
        pread, places = os.pread, self.places
        for msg_id in targets:
            fd, size, offset = places[msg_id]
            pread(fd, size, offset)


RIVALS = ("RocksDB", "LMDB", "SQLite")
"""The peers that are stores."""
PEERS: tuple[type[Peer], ...] = (MsgStore, MappedMsgStore, RocksDB, LMDB, SQLite, Floor, LookupFloor)
