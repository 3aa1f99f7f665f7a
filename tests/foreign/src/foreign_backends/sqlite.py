"""Index ``sqlite``: entries in one SQLite file, and the changes since the last commit in memory.

SQLite keeps a write-ahead log, so reads on one connection do not wait for a commit on another. An index that is read-only
reads a private copy of the file and its log.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import IndexContext, ReleaseResult

_log = logging.getLogger("msgstore.index")

FILE = "msgstore-sqlite.db"
_APPLICATION, _LAYOUT = 0x6D736773, 2
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION}",
    "CREATE TABLE entries (id BLOB PRIMARY KEY, location BLOB NOT NULL, refs INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
_SUFFIXES = ("-wal", "-shm", "-journal")
_LOCATION = 18
"""Bytes of a stored location: an integer below 2**144 is too large for SQLite."""
_MAX_KEY = 511
_ABSENT = 0, 0
"""Location and references of an id without an entry."""
_CODES = {
    sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), errno.EBUSY),
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY), errno.EACCES),
}  # fmt: skip
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH)


class _DamagedError(OSError):
    """Raised for a file that is not a usable database of this index."""


@attrs.define(eq=False)
class _Layer:
    """Changes between two freezes: (location, references) of each changed id, ``_ABSENT`` if it was removed."""

    entries: dict[bytes, tuple[int, int]] = attrs.field(factory=dict)
    state: dict[bytes, bytes | None] = attrs.field(factory=dict)
    cleared: bool = False
    """True if SQLite's contents are void. Only the lowest layer has it."""

    @classmethod
    def of(cls, layers: Sequence[_Layer]) -> _Layer:
        """Merge layers, the newest first."""
        merged = cls(cleared=bool(layers) and layers[-1].cleared)
        for layer in reversed(layers):
            merged.entries |= layer.entries
            merged.state |= layer.state
        return merged


class SqliteIndex:
    """Persistent implementation of :class:`msgstore.contract.Index`.

    ``freeze`` puts an empty layer on top of the others. ``commit`` writes the frozen layers in one transaction and then drops
    them. A lookup takes the tuple of layers once, goes through it from the top, and asks SQLite last. A layer is dropped only
    after SQLite has its contents, so a lookup finds each entry in one of them.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._path = context.directory / FILE
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._damaged = False
        self._commit_lock = threading.Lock()
        """Held while a transaction is written. Taken before the layers lock."""
        self._layers_lock = threading.Lock()
        """Held while layers are replaced."""
        self._read_lock = threading.Lock()
        """Held while the reader is used or closed."""
        self._layers: tuple[_Layer, ...] = (_Layer(cleared=True),)
        """All layers, newest first."""

    # -- load, close ------------------------------------------------------------------------------------------------------

    def load(self) -> dict[bytes, bytes] | None:
        try:
            return self._open()
        except _DamagedError as error:
            _log.warning("%s", error)
            self._release()
            if self._context.read_only:
                return None
            self._set_aside()
            return self._open()

    def _open(self) -> dict[bytes, bytes] | None:
        path = self._path
        if self._context.read_only:
            if not path.exists():
                return None
            self._copy = tempfile.TemporaryDirectory(prefix="msgstore-sqlite-")
            path = Path(self._copy.name, FILE)
            for suffix in ("", "-wal"):  # SQLite makes the other files again
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{self._path}{suffix}", f"{path}{suffix}")
        elif links := [name for suffix in ("", *_SUFFIXES) if (name := path.with_name(FILE + suffix)).is_symlink()]:
            raise OSError(errno.ELOOP, "is a symbolic link; replace it with its target, or remove it", str(links[0]))
        with self._translated():
            self._writer, self._reader = _connect(path), _connect(path)
            for connection in (self._writer, self._reader):
                connection.execute(f"PRAGMA cache_size = -{max(self._context.options.cache // 1024, 64)}")
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if self._context.sync else 'OFF'}")
            if self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                with self._writer:
                    for statement in ("BEGIN IMMEDIATE", *_SCHEMA):
                        self._writer.execute(statement)
            ((application,), (layout,)) = self._read("PRAGMA application_id") + self._read("PRAGMA user_version")
            if application != _APPLICATION or layout not in (0, _LAYOUT):
                raise _DamagedError(errno.EIO, f"application and layout are {application}, {layout}", str(self._path))
            state = dict(self._read("SELECT key, value FROM state")) if layout else None  # 0: nothing was committed
        self._layers = (_Layer(),)
        return state

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise SQLite's errors of the block as OSError with the path; as _DamagedError if they show damage."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            self._damaged |= code in _DAMAGE
            kind = _DamagedError if code in _DAMAGE else OSError
            raise kind(_CODES.get(code, errno.EIO), f"SQLite: {error}", str(self._path)) from error

    def _set_aside(self) -> None:
        number = 1
        while (target := self._path.with_name(f"{FILE}.damaged-{number}")).exists():
            number += 1
        self._context.files.replace(self._path, target)
        for suffix in _SUFFIXES:
            self._context.files.unlink(self._path.with_name(FILE + suffix))
        self._damaged = False
        _log.warning("%s: is damaged: set aside as %s. The index is rebuilt from the segments", self._path, target)

    def close(self, state: Mapping[bytes, bytes] | None) -> None:
        with self._commit_lock:
            if self._writer is not None and not self._context.read_only:
                if state is not None and not self._damaged:
                    self._write(attrs.evolve(_Layer.of(self._layers), state=dict(state)), whole=True)
                self._release()
                if self._damaged:
                    self._set_aside()
            self._release()
        self.clear()

    def _release(self) -> None:
        with self._read_lock:
            for connection in filter(None, (self._reader, self._writer)):
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            self._reader = self._writer = None
            if self._copy is not None:
                self._copy.cleanup()

    # -- entries ----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        with self._layers_lock:
            self._layers = (_Layer(cleared=True),)

    def __len__(self) -> int:
        """Return the number of entries. Reads all of them."""
        return sum(1 for _ in self.items())

    def _read(self, statement: str, *arguments: bytes) -> list[tuple[Any, ...]]:
        """Return the rows of a query as of the last commit; none if the database is closed."""
        with self._translated(), self._read_lock:
            return self._reader.execute(statement, arguments).fetchall() if self._reader else []

    def _entry(self, msg_id: bytes) -> tuple[int, int]:
        layers = self._layers
        for layer in layers:
            if (entry := layer.entries.get(msg_id)) is not None:
                return entry
        if layers[-1].cleared:
            return _ABSENT
        found = self._read("SELECT location, refs FROM entries WHERE id = ?", msg_id)
        return _unpacked(*found[0]) if found else _ABSENT

    def get(self, msg_id: bytes, /) -> int | None:
        location, count = self._entry(msg_id)
        return location if count else None

    def references(self, msg_id: bytes) -> int:
        return self._entry(msg_id)[1]

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Return (id, location, references) of every entry at the time of the call, from a copy of all of them."""
        layers = self._layers  # before SQLite is asked: it may be given their contents meanwhile
        changes = _Layer.of(layers).entries
        rows = [] if layers[-1].cleared else self._read("SELECT id, location, refs FROM entries")
        entries = {msg_id: _unpacked(*found) for msg_id, *found in rows} | changes
        return ((msg_id, location, count) for msg_id, (location, count) in entries.items() if count)

    def enter(self, ids: Sequence[bytes], locations: Iterable[int], references: Iterable[int] | None = None) -> None:
        counts = repeat(1) if references is None else references
        self._layers[0].entries.update(zip(ids, zip(locations, counts, strict=False), strict=True))

    def add_reference(self, msg_id: bytes) -> bool:
        location, count = self._entry(msg_id)
        if count:
            self._layers[0].entries[msg_id] = location, count + 1
        return count > 0

    def release(self, ids: Sequence[bytes]) -> ReleaseResult:
        """Remove one reference for each given id. Looks up all ids first: if SQLite raises, nothing has changed."""
        entries = {msg_id: self._entry(msg_id) for msg_id in ids}
        released = ReleaseResult([], [])
        for msg_id in ids:
            location, count = entries[msg_id]
            if not count:
                released.missing.append(msg_id)
                continue
            entries[msg_id] = (location, count - 1) if count > 1 else _ABSENT
            if count == 1:
                released.freed.append((msg_id, location))
        self._layers[0].entries.update(entries)
        return released

    def relocate(self, ids: Sequence[bytes], old: Sequence[int], new: Sequence[int]) -> int:
        moved = {}
        for msg_id, at, to in zip(ids, old, new, strict=True):
            location, count = self._entry(msg_id)
            if count and location == at:
                moved[msg_id] = to, count
        self._layers[0].entries.update(moved)
        return len(moved)

    # -- commits ----------------------------------------------------------------------------------------------------------

    def freeze(self, state: Mapping[bytes, bytes | None]) -> None:
        if self._writer is None or self._context.read_only:
            return
        for key in state:
            if not 0 < len(key) <= _MAX_KEY:
                raise ValueError(f"{self._path}: a key of {len(key)} bytes; keys of the state must have 1 to {_MAX_KEY} bytes")
        with self._layers_lock:
            self._layers[0].state |= state
            self._layers = (_Layer(), *self._layers)

    def commit(self) -> None:
        """Write the frozen layers as one. After an error that one stays, so that a lookup passes few layers."""
        with self._commit_lock:
            with self._layers_lock:
                newest, *frozen = self._layers
                if not frozen:
                    return
                merged = _Layer.of(frozen)
                self._layers = (newest, merged)
            self._write(merged)
            with self._layers_lock:
                self._layers = tuple(layer for layer in self._layers if layer is not merged)

    def _write(self, layer: _Layer, *, whole: bool = False) -> None:
        """Write a layer in one transaction; ``whole``: its state replaces all that is stored. Caller holds the commit lock."""
        assert self._writer is not None
        entries, state = sorted(layer.entries.items()), layer.state.items()  # sorted keys are faster
        with self._translated(), self._writer as writer:
            writer.execute("BEGIN IMMEDIATE")
            if layer.cleared:
                writer.execute("DELETE FROM entries")
            if layer.cleared or whole:
                writer.execute("DELETE FROM state")
            writer.executemany("DELETE FROM entries WHERE id = ?", [(i,) for i, (_, count) in entries if not count])
            rows = [(i, location.to_bytes(_LOCATION), count) for i, (location, count) in entries if count]
            writer.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
            writer.executemany("DELETE FROM state WHERE key = ?", [(key,) for key, value in state if value is None])
            writer.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", [row for row in state if row[1] is not None])
            writer.execute(f"PRAGMA user_version = {_LAYOUT}")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)


def _unpacked(location: bytes, count: int) -> tuple[int, int]:
    return int.from_bytes(location), count
