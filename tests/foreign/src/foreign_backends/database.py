"""SQLite file with entries and state: validated when it is opened, read on one connection, written on another.

It uses a write-ahead log, so that reads do not wait for a commit. Read-only, a closed database is opened as immutable, without
locks. If its last writer was killed, its log is still next to it: then a private copy is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

LAYOUT = 1
_APPLICATION = 0x6D736773
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (id BLOB PRIMARY KEY, slot BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
)
_SUFFIXES = ("", "-wal", "-shm", "-journal")
_MAX_IDS_PER_QUERY = 500
_CODES = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
}


class DamagedError(OSError):
    """Raised for a file that is not a usable database of this index."""


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors of the block as OSError with the path; as DamagedError if they show damage."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH)
        kind = DamagedError if damaged else OSError
        raise kind(_CODES.get(code, errno.EIO), f"SQLite: {error}", str(path)) from error


class Database:
    """SQLite database of entries and state.

    Methods raise OSError, or its subclass DamagedError. Any thread calls ``read``, ``count_without`` and ``rows``, also during
    ``write``. All other methods are called by one thread at a time.
    """

    def __init__(self, path: Path, *, cache: int, sync: bool, read_only: bool) -> None:
        """Open the database ``path``, or create it. ``cache`` is in bytes per connection.

        With ``read_only``, nothing is written at ``path``, and a missing database raises FileNotFoundError.
        """
        self._path = path
        self._cache = cache
        self._synchronous = "FULL" if sync else "OFF"
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._read_lock = threading.Lock()
        self.damaged = False
        """True if damage was found since the database was opened."""
        if read_only:
            self._writer = None
            self._uri = self._read_only_uri()
        else:
            for suffix in _SUFFIXES:
                if (name := path.with_name(path.name + suffix)).is_symlink():
                    raise OSError(errno.ELOOP, "is a symbolic link; replace it with its target, or remove it", str(name))
            self._uri = _uri(path, "mode=rwc")
            new = not path.exists()
            self._writer = self._connect()
        try:
            self._reader: sqlite3.Connection | None = None
            with self._translated():
                if self._writer is not None:
                    self._prepare(self._writer)
                    if new and sync:
                        _sync_directory(path.parent)
                self._reader = self._connect()
                self.state = self._read_state()
        except BaseException:
            self.close()
            raise

    def _read_only_uri(self) -> str:
        path = self._path
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no SQLite database", str(path))
        others = [name for suffix in _SUFFIXES[1:] if (name := path.with_name(path.name + suffix)).exists()]
        if not others:
            return _uri(path, "mode=ro&immutable=1")
        self._copy = tempfile.TemporaryDirectory(prefix="msgstore-sqlite-")
        for name in (path, *others):
            if not name.name.endswith("-shm"):  # SQLite recreates it
                shutil.copyfile(name, Path(self._copy.name) / name.name)
        return _uri(Path(self._copy.name) / path.name, "mode=rw")

    def _connect(self) -> sqlite3.Connection:
        with self._translated():
            connection = sqlite3.connect(self._uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
            try:
                connection.execute(f"PRAGMA cache_size = -{max(self._cache // 1024, 64)}")
            except BaseException:
                connection.close()
                raise
            return connection

    def _prepare(self, writer: sqlite3.Connection) -> None:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute(f"PRAGMA synchronous = {self._synchronous}")
        if writer.execute("PRAGMA user_version").fetchone() == (0,):
            with _transaction(writer):
                for statement in _SCHEMA:
                    writer.execute(statement)
                writer.execute(f"PRAGMA application_id = {_APPLICATION}")
                writer.execute(f"PRAGMA user_version = {LAYOUT}")

    def _read_state(self) -> dict[bytes, bytes] | None:
        """Return the state, or None if nothing was ever committed. Raises DamagedError for a database of another program."""
        reader = self._reader
        assert reader is not None
        found = (reader.execute("PRAGMA application_id").fetchone(), reader.execute("PRAGMA user_version").fetchone())
        if found == ((0,), (0,)) and reader.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            return None  # the process that created it was killed before the first transaction
        if found != ((_APPLICATION,), (LAYOUT,)):
            raise self._damage(f"application and layout are {found}")
        if reader.execute("SELECT count(*) FROM counts").fetchone() == (0,):
            return None
        return dict(reader.execute("SELECT key, value FROM state"))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate the errors of the block, and set ``damaged`` if they show damage."""
        try:
            with translated(self._path):
                yield
        except DamagedError:
            self.damaged = True
            raise

    def _damage(self, what: str) -> DamagedError:
        self.damaged = True
        return DamagedError(errno.EIO, what, str(self._path))

    def read(self, key: bytes) -> bytes:
        """Return the slot of an id as of the last commit; empty if there is none, or if the database is closed."""
        with self._read_lock:
            if self._reader is None:
                return b""
            try:
                found = self._reader.execute("SELECT slot FROM entries WHERE id = ?", (key,)).fetchone()
            except sqlite3.Error:
                with self._translated():
                    raise
            return found[0] if found else b""

    def count_without(self, ids: Iterable[bytes]) -> int:
        """Return the number of entries with other ids than these, as of one commit."""
        with self._read_lock, self._translated():
            if self._reader is None:
                return 0
            with _transaction(self._reader, "BEGIN"):
                return _count(self._reader) - _count_of(self._reader, ids)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all entries as of the call. It reads them while it advances, on its own connection."""
        connection = self._connect()
        try:
            with self._translated():
                connection.execute("BEGIN")
                connection.execute("SELECT value FROM counts").fetchone()  # the first read fixes the snapshot
                return _Rows(connection, self._path)
        except BaseException:
            connection.close()
            raise

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
        *,
        drop_entries: bool,
        drop_state: bool,
    ) -> None:
        """Write all changes in one transaction; after an error, nothing has changed. Sorted keys are faster."""
        writer = self._writer
        assert writer is not None
        with self._translated(), _transaction(writer):
            count = len(puts)
            if drop_entries:
                writer.execute("DELETE FROM entries")
            else:
                count += _count(writer) - _count_of(writer, (key for key, _ in puts)) - _count_of(writer, deletes)
            if drop_state:
                writer.execute("DELETE FROM state")
            writer.executemany("DELETE FROM entries WHERE id = ?", ((key,) for key in deletes))
            writer.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", puts)
            removed = [(key,) for key, value in state.items() if value is None]
            writer.executemany("DELETE FROM state WHERE key = ?", removed)
            changed = [(key, value) for key, value in state.items() if value is not None]
            writer.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", changed)
            writer.execute("INSERT OR REPLACE INTO counts VALUES ('entries', ?)", (count,))

    def close(self) -> None:
        """Close the files without a commit. A second call does nothing."""
        with self._read_lock:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    with contextlib.suppress(sqlite3.Error):
                        connection.close()
            self._reader = self._writer = None
            if self._copy is not None:
                self._copy.cleanup()
                self._copy = None


class _Rows(Iterator[tuple[bytes, bytes]]):
    """Iterator over all entries. Closes its connection at the end, or when it is garbage-collected."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._cursor: Iterator[tuple[bytes, bytes]] = connection.execute("SELECT id, slot FROM entries")

    def __next__(self) -> tuple[bytes, bytes]:
        try:
            with translated(self._path):
                return next(self._cursor)
        except StopIteration:
            self._cursor = iter(())
            self._connection.close()
            raise

    def __del__(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _count(connection: sqlite3.Connection) -> int:
    """Return the number of entries from the table ``counts``: for ``count(*)``, SQLite would read all of them."""
    found = connection.execute("SELECT value FROM counts WHERE name = 'entries'").fetchone()
    return int(found[0]) if found else 0


def _count_of(connection: sqlite3.Connection, ids: Iterable[bytes]) -> int:
    """Return how many of these ids have an entry."""
    ids = iter(ids)
    count = 0
    while batch := list(islice(ids, _MAX_IDS_PER_QUERY)):
        placeholders = ",".join("?" * len(batch))
        count += connection.execute(f"SELECT count(*) FROM entries WHERE id IN ({placeholders})", batch).fetchone()[0]
    return count


def _uri(path: Path, parameters: str) -> str:
    return f"file:{urllib.parse.quote(str(path.absolute()))}?{parameters}"


def _sync_directory(path: Path) -> None:
    if os.name == "posix":  # elsewhere directories cannot be opened
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
