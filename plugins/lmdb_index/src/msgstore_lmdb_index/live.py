"""An environment that another process writes: every look-up is a transaction of its own, and sees the last commit.

Each is noted in LMDB's table of readers, in ``lock.mdb``: the writer reuses no page that one of them may be reading. Between
look-ups nothing is held, so an idle reader costs the writer nothing; the slot of one that was killed is cleared by the writer's
next commit.
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

from msgstore_lmdb_index.contents import DATA, LOCK, Contents, check_there, refuse_links
from msgstore_lmdb_index.errors import Errors

if TYPE_CHECKING:
    from msgstore_lmdb_index.contents import Transaction

_ATTEMPTS, _PAUSE = 1000, 0.001
"""Where all slots of the table are taken, for an instant each; a second at most."""


class LiveEnvironment:
    """Every method may be called by any thread. Raises OSError, DamagedError among them."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet: see ``refresh``."""
        self._path = path
        self._errors = Errors(path)
        self._reading = threading.Lock()
        self._env: lmdb.Environment | None = None
        self._contents: Contents | None = None
        self._entries: lmdb._Database | None = None
        self._identity: tuple[int, int] | None = None
        """Of the file that is open: a damaged one is set aside by a writer that opens, and another one begun."""

    @property
    def damaged(self) -> bool:
        return self._errors.damaged

    def refresh(self) -> dict[bytes, bytes] | None:
        """The state of the last commit; None if there was none. Opens what is there now under the environment's name.

        Raises PermissionError if a reader cannot be noted: then a writer would not know of it.
        """
        with self._reading, self._errors.translated():
            if self._env is None or self._identity != self._found():
                self._close()
                try:
                    self._open()
                except FileNotFoundError:
                    return None
                except BaseException:
                    self._close()
                    raise
            with self._now() as (contents, transaction):
                return contents.read_state(transaction)

    def _found(self) -> tuple[int, int] | None:
        with contextlib.suppress(FileNotFoundError):
            status = (self._path / DATA).stat()
            return status.st_dev, status.st_ino
        return None

    def _open(self) -> None:
        check_there(self._path)
        refuse_links(self._path)
        lock = self._path / LOCK
        if not os.access(lock if lock.exists() else self._path, os.W_OK):  # on a read-only file system LMDB would do without
            raise PermissionError(errno.EACCES, "cannot be written; what reads beside a writer is noted there", str(lock))
        identity = self._found()
        self._env = lmdb.Environment(str(self._path), max_dbs=2, max_spare_txns=1, readonly=True, create=False, map_size=0)
        self._errors.opened()
        self._contents = Contents.open(self._env, self._path, self._errors, create=False)
        self._entries = self._contents.entries
        self._identity = identity

    @contextlib.contextmanager
    def _now(self) -> Iterator[tuple[Contents, Transaction]]:
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
            except lmdb.MapResizedError:  # the writer's has grown
                self._env.set_mapsize(0)
            except lmdb.ReadersFullError:
                self._env.reader_check()
                time.sleep(_PAUSE)
        raise OSError(errno.EAGAIN, "too many processes are reading", str(self._path))

    def read(self, key: bytes) -> bytes:
        """The value in ``entries`` as of the last commit; empty if there is none."""
        with self._reading:
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
        with self._reading, self._errors.translated():
            if self._env is None:
                return 0
            with self._now() as (contents, transaction):
                return contents.count(transaction)

    def rows(self, row_size: int) -> bytes:
        """Keys and values of all ``entries`` as of the last commit, one behind the other."""
        with self._reading, self._errors.translated():
            if self._env is None:
                return b""
            with self._now() as (contents, transaction):
                return contents.read_rows(transaction, row_size)

    def close(self) -> None:
        """Let go of the files. Closing twice is fine."""
        with self._reading:
            self._close()

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = self._contents = self._identity = None
