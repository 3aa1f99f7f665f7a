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

import attrs

from msgstore.contract import IndexContext, ReleaseResult

_log = logging.getLogger("msgstore.index")

FILE = "msgstore-sqlite.db"
JOURNAL = f"{FILE}-journal"
_APPLICATION = 0x6D736773
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION}",
    "CREATE TABLE entries (id BLOB PRIMARY KEY, location BLOB NOT NULL, refs INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
_LOCATION = 18
"""Bytes of a stored location: an integer below 2**144 is too large for SQLite."""
_MAX_KEY = 511
_ABSENT = 0, 0
"""Location and references of an id without an entry."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH)


@attrs.define(eq=False)
class _Changes:
    """Changes that SQLite does not have yet: (location, references) of each changed id, ``_ABSENT`` if it was removed."""

    entries: dict[bytes, tuple[int, int]] = attrs.field(factory=dict)
    state: dict[bytes, bytes | None] = attrs.field(factory=dict)
    cleared: bool = False
    """True if what SQLite has is void."""

    def add(self, later: _Changes) -> _Changes:
        if later.cleared:
            return later
        self.entries |= later.entries
        self.state |= later.state
        return self


class SqliteIndex:
    """Persistent implementation of :class:`msgstore.contract.Index`.

    Every change goes to the dictionary of all entries, which ``get`` reads, and to the changes since the last ``freeze``.
    ``freeze`` adds these to what is set aside, and ``commit`` writes that in one transaction.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._connection: sqlite3.Connection | None = None
        """None if nothing may be written, or the index is closed."""
        self._entries: dict[bytes, tuple[int, int]] = {}
        self._changes = _Changes()
        self._frozen: _Changes | None = None
        """What is set aside, and not being written."""
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
            for path in (self._path, self._path.with_name(JOURNAL)):
                if path.is_symlink():
                    raise OSError(errno.ELOOP, "is a symbolic link; replace it with its target, or remove it", str(path))
            return self._read(self._path)
        if not self._path.exists():
            return None
        with tempfile.TemporaryDirectory(prefix="msgstore-sqlite-") as copy:  # SQLite may have to roll a commit back
            for name in (FILE, JOURNAL):
                if (self._path.with_name(name)).exists():
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
        rows = connection.execute("SELECT id, location, refs FROM entries")
        self._entries = {msg_id: (int.from_bytes(location), count) for msg_id, location, count in rows}
        return dict(connection.execute("SELECT key, value FROM state"))

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        with self._commit_lock:
            if state is not None and self._connection is not None:
                self._write(_Changes(self._entries, dict(state), cleared=True))
            self._release()
            self._entries, self._changes, self._frozen = {}, _Changes(), None

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- entries ----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        with self._frozen_lock:
            self._entries, self._changes, self._frozen = {}, _Changes(cleared=True), None

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, msg_id: bytes, /) -> int | None:
        entry = self._entries.get(msg_id)
        return entry[0] if entry else None

    def references(self, msg_id: bytes) -> int:
        return self._entries.get(msg_id, _ABSENT)[1]

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call, from a copy of all of them."""
        return ((msg_id, location, count) for msg_id, (location, count) in self._entries.copy().items())

    def _change(self, entries: Mapping[bytes, tuple[int, int]]) -> None:
        """Set entries; those without a reference are removed."""
        self._changes.entries.update(entries)
        self._entries.update((msg_id, entry) for msg_id, entry in entries.items() if entry[1])
        for msg_id, (_, count) in entries.items():
            if not count:
                self._entries.pop(msg_id, None)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        counts = repeat(1) if references is None else references
        self._change(dict(zip(ids, zip(locations, counts, strict=False), strict=True)))

    def add_reference(self, msg_id: bytes) -> bool:
        location, count = self._entries.get(msg_id, _ABSENT)
        if count:
            self._change({msg_id: (location, count + 1)})
        return count > 0

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        released = ReleaseResult([], [])
        for msg_id in ids:
            location, count = self._entries.get(msg_id, _ABSENT)
            if not count:
                released.missing.append(msg_id)
                continue
            self._change({msg_id: (location, count - 1)})
            if count == 1:
                released.freed.append((msg_id, location))
        return released

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moves = {msg_id: to for msg_id, at, to in zip(ids, old, new, strict=True) if self.get(msg_id) == at}
        self._change({msg_id: (to, self.references(msg_id)) for msg_id, to in moves.items()})
        return len(moves)

    # -- commits ----------------------------------------------------------------------------------------------------------

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        if self._connection is None:
            return
        for key in state:
            if not 0 < len(key) <= _MAX_KEY:
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; keys of the state must have 1 to {_MAX_KEY} bytes")
        self._changes.state |= state
        with self._frozen_lock:
            self._frozen = self._frozen.add(self._changes) if self._frozen else self._changes
            self._changes = _Changes()

    def commit(self) -> None:
        """Write what is set aside. After an error it is set aside again, before what later freezes have added."""
        with self._commit_lock:
            with self._frozen_lock:
                frozen, self._frozen = self._frozen, None
            if frozen is None:
                return
            try:
                self._write(frozen)
            except OSError:
                with self._frozen_lock:
                    self._frozen = frozen.add(self._frozen) if self._frozen else frozen
                raise

    def _write(self, changes: _Changes) -> None:
        """Write changes in one transaction. Caller holds the commit lock."""
        connection = self._connection
        assert connection is not None
        entries, state = sorted(changes.entries.items()), changes.state.items()  # sorted keys are faster
        rows = [(msg_id, location.to_bytes(_LOCATION), count) for msg_id, (location, count) in entries if count]
        try:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                if changes.cleared:
                    connection.execute("DELETE FROM entries")
                    connection.execute("DELETE FROM state")
                connection.executemany("DELETE FROM entries WHERE id = ?", [(i,) for i, (_, count) in entries if not count])
                connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
                connection.executemany("DELETE FROM state WHERE key = ?", [(key,) for key, value in state if value is None])
                connection.executemany(
                    "INSERT OR REPLACE INTO state VALUES (?, ?)", [row for row in state if row[1] is not None]
                )
        except sqlite3.Error as error:
            code = errno.ENOSPC if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(code, f"SQLite: {error}", str(self._path)) from error
