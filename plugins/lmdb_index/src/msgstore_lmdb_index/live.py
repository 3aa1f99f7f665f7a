"""Environment that another process writes. Each lookup is a transaction of its own and sees the last commit.

LMDB registers each transaction in its reader table in ``lock.mdb``. The writer does not reuse a page that a registered
transaction may read. Nothing is held between lookups, so an idle reader costs the writer nothing. The writer's next commit
frees the slot of a killed reader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from msgstore_lmdb_index.contents import (
    LOCK,
    Contents,
    ErrorTranslator,
    check_exists,
    refuse_special_files,
    reserve_lock_file,
)
from msgstore_lmdb_index.rescue import DATA

if TYPE_CHECKING:
    from msgstore_lmdb_index.contents import Transaction

_ATTEMPTS, _PAUSE_SECONDS = 1000, 0.001
"""Retries while all slots of the reader table are in use: one second in total."""


class LiveEnvironment:
    """Read access to the environment of another process. Thread-safe. Methods raise OSError, or its subclass DamagedError."""

    def __init__(self, path: Path) -> None:
        """Open nothing: ``refresh`` opens the environment."""
        self._path = path
        self._errors = ErrorTranslator(path)
        self._read_lock = threading.Lock()
        self._env: lmdb.Environment | None = None
        self._contents: Contents | None = None
        self._entries: lmdb._Database | None = None
        self._open_file: tuple[int, int] | None = None
        """Device and inode of the open file. A writer that finds damage renames the file and creates a new one."""

    @property
    def damaged(self) -> bool:
        """True if damage was found since this object was created."""
        return self._errors.damaged

    def refresh(self) -> dict[bytes, bytes] | None:
        """Open the current file of the environment and return the state of the last commit; None if there is none.

        Raises PermissionError if LMDB cannot register readers: a writer could then reuse pages that are being read.
        """
        with self._read_lock, self._errors.translated():
            if self._env is None or self._open_file != self._current_file():
                self._close()
                try:
                    self._open()
                except FileNotFoundError:
                    self._close()
                    return None
                except BaseException:
                    self._close()
                    raise
            with self._transaction() as (contents, transaction):
                return contents.read_state(transaction)

    def _current_file(self) -> tuple[int, int] | None:
        with contextlib.suppress(FileNotFoundError):
            status = (self._path / DATA).stat()
            return status.st_dev, status.st_ino
        return None

    def _open(self) -> None:
        check_exists(self._path)
        refuse_special_files(self._path)
        lock = self._path / LOCK
        # Without write access, as on a read-only file system, LMDB would silently read without registering.
        if not os.access(lock if lock.exists() else self._path, os.W_OK):
            raise PermissionError(errno.EACCES, "cannot be written, but readers must be registered there", str(lock))
        reserve_lock_file(self._path)
        opened_file = self._current_file()
        self._env = lmdb.Environment(str(self._path), max_dbs=2, max_spare_txns=1, readonly=True, create=False, map_size=0)
        self._contents = Contents.open(self._env, self._path, self._errors, create=False)
        self._entries = self._contents.entries
        self._open_file = opened_file

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[Contents, Transaction]]:
        """Run the block in a new read transaction. Caller holds the read lock."""
        assert self._contents is not None
        transaction = self._begin()
        try:
            yield self._contents, transaction
        finally:
            transaction.abort()

    def _begin(self) -> Transaction:
        assert self._env is not None
        for _ in range(_ATTEMPTS):
            try:
                return self._env.begin(self._entries)
            except lmdb.MapResizedError:  # the writer has grown its map
                self._env.set_mapsize(0)
            except lmdb.ReadersFullError:
                self._env.reader_check()
                time.sleep(_PAUSE_SECONDS)
        raise OSError(errno.EAGAIN, "too many processes are reading", str(self._path))

    def read(self, key: bytes) -> bytes:
        """Return the value of ``key`` in ``entries`` as of the last commit; empty if there is none."""
        with self._read_lock:
            if self._env is None:
                return b""
            try:
                try:
                    transaction = self._env.begin(self._entries)
                except (lmdb.MapResizedError, lmdb.ReadersFullError):
                    transaction = self._begin()
                try:
                    return transaction.get(key, b"")
                finally:
                    transaction.abort()
            except lmdb.Error as error:
                raise self._errors.as_os_error(error) from error

    @property
    def entries(self) -> int:
        """Number of entries as of the last commit."""
        with self._read_lock, self._errors.translated():
            if self._env is None:
                return 0
            with self._transaction() as (contents, transaction):
                return contents.count(transaction)

    def rows(self, row_size: int) -> bytes:
        """Return the keys and values of all ``entries`` as of the last commit, concatenated."""
        with self._read_lock, self._errors.translated():
            if self._env is None:
                return b""
            with self._transaction() as (contents, transaction):
                return contents.read_rows(transaction, row_size)

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        with self._read_lock:
            self._close()

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = self._contents = self._open_file = None
