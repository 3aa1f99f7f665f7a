"""Index ``sqlite``: all entries in memory, and in one SQLite file as of the last commit."""

from __future__ import annotations

import errno
import logging
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path

from msgstore.contract import IndexContext, ReleaseResult

_log = logging.getLogger("msgstore.index")

FILE = "msgstore-sqlite.db"
JOURNAL = f"{FILE}-journal"
_APPLICATION = 0x6D736773
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION}",
    "CREATE TABLE IF NOT EXISTS entries (id BLOB PRIMARY KEY, location BLOB NOT NULL, refs INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "DELETE FROM entries",
    "DELETE FROM state",
)
_LOCATION = 18
"""Bytes of a stored location: an integer below 2**144 is too large for SQLite."""
_MAX_KEY = 511
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH)


class SqliteIndex:
    """Persistent implementation of :class:`msgstore.contract.Index`.

    ``freeze`` copies all entries, and ``commit`` replaces what SQLite has by the copy: the time of both grows with the number
    of entries.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._connection: sqlite3.Connection | None = None
        """None if nothing may be written, or the index is closed."""
        self._entries: dict[bytes, tuple[int, int]] = {}
        """Id to (location, references)."""
        self._state: dict[bytes, bytes] = {}
        self._frozen: tuple[dict[bytes, tuple[int, int]], dict[bytes, bytes]] | None = None
        """Entries and state that are set aside, and not being written."""
        self._commit_lock = threading.Lock()
        """Held while a transaction is written. Taken before the frozen lock."""
        self._frozen_lock = threading.Lock()
        """Held while ``_frozen`` is replaced."""

    # -- load, close ------------------------------------------------------------------------------------------------------

    def load(self) -> dict[bytes, bytes] | None:
        try:
            return self._open()
        except sqlite3.Error as error:
            self._release()
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF not in _DAMAGE:
                raise OSError(errno.EIO, f"SQLite: {error}", str(self._path)) from error
            _log.warning("%s: is damaged: %s. The index is rebuilt from the segments", self._path, error)
        if self._context.read_only:
            return None
        number = 1
        while (target := self._path.with_name(f"{FILE}.damaged-{number}")).exists():
            number += 1
        self._context.files.replace(self._path, target)
        self._context.files.unlink(self._path.with_name(JOURNAL))
        return self.load()

    def _open(self) -> dict[bytes, bytes] | None:
        if not self._context.read_only:
            return self._read(self._path)
        if not self._path.exists():
            return None
        with tempfile.TemporaryDirectory(prefix="msgstore-sqlite-") as copy:  # SQLite may have to roll a commit back
            for name in (FILE, JOURNAL):
                if self._path.with_name(name).exists():
                    shutil.copyfile(self._path.with_name(name), Path(copy, name))
            found = self._read(Path(copy, FILE))
            self._release()
        return found

    def _read(self, path: Path) -> dict[bytes, bytes] | None:
        connection = self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._context.sync else 'OFF'}")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            return None  # the first commit makes the tables
        if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            raise sqlite3.DatabaseError("it is of another application")
        if (found := connection.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):  # zeros read as rows of NULLs
            raise sqlite3.DatabaseError(found[0])
        state = dict(connection.execute("SELECT key, value FROM state"))
        rows = connection.execute("SELECT id, location, refs FROM entries")
        # Both are read before either is kept: damage in one leaves the index empty.
        self._entries = {msg_id: (int.from_bytes(location), count) for msg_id, location, count in rows}
        self._state = state
        return state.copy()

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        with self._commit_lock:
            if state is not None and self._connection is not None:
                self._write(self._entries, state)
            self._release()
            self.clear()

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- entries ----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        with self._frozen_lock:
            self._entries, self._state, self._frozen = {}, {}, None

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, msg_id: bytes, /) -> int | None:
        entry = self._entries.get(msg_id)
        return entry[0] if entry else None

    def references(self, msg_id: bytes) -> int:
        return self._entries.get(msg_id, (0, 0))[1]

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call, from a copy of all of them."""
        return ((msg_id, location, count) for msg_id, (location, count) in self._entries.copy().items())

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        counts = repeat(1) if references is None else references
        self._entries.update(dict(zip(ids, zip(locations, counts, strict=False), strict=True)))  # all of it or nothing

    def add_reference(self, msg_id: bytes) -> bool:
        if msg_id not in self._entries:
            return False
        location, count = self._entries[msg_id]
        self._entries[msg_id] = location, count + 1
        return True

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        released = ReleaseResult([], [])
        for msg_id in ids:
            location, count = self._entries.get(msg_id, (0, 0))
            if count > 1:
                self._entries[msg_id] = location, count - 1
            elif count == 1:
                released.freed.append((msg_id, self._entries.pop(msg_id)[0]))
            else:
                released.missing.append(msg_id)
        return released

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moves = {msg_id: to for msg_id, at, to in zip(ids, old, new, strict=True) if self.get(msg_id) == at}
        self._entries.update({msg_id: (to, self.references(msg_id)) for msg_id, to in moves.items()})
        return len(moves)

    # -- commits ----------------------------------------------------------------------------------------------------------

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        if self._connection is None:
            return
        for key in state:
            if not 0 < len(key) <= _MAX_KEY:
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; keys of the state must have 1 to {_MAX_KEY} bytes")
        self._state = {key: value for key, value in {**self._state, **state}.items() if value is not None}
        with self._frozen_lock:
            self._frozen = self._entries.copy(), self._state

    def commit(self) -> None:
        """Write what is set aside. After an error it is set aside again, unless a later ``freeze`` has more."""
        with self._commit_lock:
            with self._frozen_lock:
                frozen, self._frozen = self._frozen, None
            if frozen is None:
                return
            try:
                self._write(*frozen)
            except OSError:
                with self._frozen_lock:
                    self._frozen = self._frozen or frozen
                raise

    def _write(self, entries: Mapping[bytes, tuple[int, int]], state: Mapping[bytes, bytes]) -> None:
        """Replace everything in one transaction. Caller holds the commit lock."""
        connection = self._connection
        assert connection is not None
        rows = [(msg_id, location.to_bytes(_LOCATION), count) for msg_id, (location, count) in sorted(entries.items())]
        try:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
                connection.executemany("INSERT INTO state VALUES (?, ?)", state.items())
        except sqlite3.Error as error:
            code = errno.ENOSPC if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(code, f"SQLite: {error}", str(self._path)) from error
