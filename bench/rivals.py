"""Other stores with which msgstore is compared."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import rocksdict
from peer import LAG, Pair, Peer, batches


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

    def wait_until_idle(self) -> None:
        watched = ("mem-table-flush-pending", "num-running-flushes", "compaction-pending", "num-running-compactions")
        for _ in range(1000):
            if not any(self.db.property_int_value(f"rocksdb.{name}") for name in watched):
                return
            time.sleep(0.01)  # RocksDB has no call that waits for all background work

    def get_one(self, msg_id: bytes) -> bytes | None:
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

    def get_one(self, msg_id: bytes) -> bytes | None:
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

    def get_one(self, msg_id: bytes) -> bytes | None:
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
