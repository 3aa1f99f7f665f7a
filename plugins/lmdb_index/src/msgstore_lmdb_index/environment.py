"""One LMDB environment: opened with care, grown on demand, read through one snapshot. Knows bytes, not messages.

LMDB maps its file: reading a page behind the end of the file kills the process. Its own files can end before their last
page (a page that is allocated and freed in one transaction is not written), so on opening for writing the file is extended to
the whole map, sparsely; a file shorter than its last page is then one that something else has cut.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import lmdb

from msgstore.contract import StoreError
from msgstore_lmdb_index.contents import DATA, LAYOUT, LAYOUT_KEY, MAX_READERS, Contents, check_there, refuse_links
from msgstore_lmdb_index.errors import DamagedError, Errors
from msgstore_lmdb_index.switching import prompt_switching

_MINIMUM_MAP = 2**20
_MAP_STEP = 2**16
"""Bytes; a multiple of every page size."""


class Environment:
    """``read`` and ``rows`` are called by any thread, also beside ``write``; everything else by one thread at a time, and
    nothing beside ``renew``. Raises OSError, DamagedError among them."""

    entries: int
    """Entries of the snapshot."""
    state: dict[bytes, bytes] | None
    """As found on opening; None if nothing was ever committed."""
    has_failed: bool
    """Whether a transaction has failed, so that the environment must be opened again before the next one."""

    reopened = 0
    """How often it was opened again: each time the snapshot may be another one."""
    _get: Callable[[bytes, bytes], bytes]

    def __init__(self, path: Path, *, map_size: int, sync: bool, read_only: bool) -> None:
        """Open ``path``, or make it. Read-only nothing is written or locked; FileNotFoundError if there is no environment."""
        self._path = path
        self._errors = Errors(path)
        self._read_only = read_only
        self._reading = threading.Lock()
        if not read_only:
            refuse_links(path)
        self._sync = sync
        self._map_size = -(-max(map_size, _MINIMUM_MAP) // _MAP_STEP) * _MAP_STEP
        self._open(create=not read_only)
        try:
            with self._errors.translated():
                if sync and not read_only:
                    self._sync_names()
                self.state = self._contents.read_state(self._snapshot)
        except BaseException:
            self._env.close()
            raise

    def _open(self, *, create: bool) -> None:
        if not create:  # LMDB makes a file that is missing
            check_there(self._path)
        with self._errors.translated():
            self._env = lmdb.Environment(
                str(self._path), map_size=self._map_size, max_dbs=2, max_spare_txns=1, readonly=self._read_only,
                lock=not self._read_only, create=create, sync=self._sync, metasync=self._sync, max_readers=MAX_READERS,
            )  # fmt: skip
            self._errors.opened()
        try:
            with self._errors.translated():
                self._contents = Contents.open(self._env, self._path, self._errors, create=create)
                self._extend()
                self._begin()
        except BaseException:
            self._env.close()
            raise
        self._is_open = True
        self.has_failed = False

    def reopen(self) -> None:
        """Close the environment and open it again: after a failed write of a meta page LMDB refuses every transaction.

        Reads wait meanwhile. The new snapshot may or may not have the transaction that failed. If this raises OSError, every
        later read and ``reopen`` tries it again.
        """
        with self._reading:
            self._reopen()

    def _reopen(self) -> None:
        """Caller holds the reading lock."""
        self._get, self._is_open = self._read_reopened, False
        self._env.close()  # and with it the snapshot
        try:
            self._open(create=False)  # a new, empty one in the place of one that is gone would be taken for all there is
        except DamagedError:
            raise
        except (OSError, StoreError) as error:  # StoreError: another thread has opened it in between
            reason = getattr(error, "strerror", None) or error
            what = f"the index could not be opened again after a failed write: {reason}"
            raise OSError(getattr(error, "errno", None) or errno.EBUSY, what, str(self._path)) from error
        self.reopened += 1

    def _read_reopened(self, key: bytes, default: bytes) -> bytes:
        self._reopen()
        return self._get(key, default)

    def _extend(self) -> None:
        data, size = self._path / DATA, self._env.info()["map_size"]
        if not self._read_only and data.stat().st_size < size:
            os.truncate(data, size)
        self._map_size = size

    def _sync_names(self) -> None:
        """LMDB syncs its file but no directory: a power loss could take the file's name, and with it every count."""
        if os.name == "posix":  # elsewhere directories cannot be opened
            for directory in (self._path, self._path.parent):
                fd = os.open(directory, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def renew(self) -> None:
        """A new snapshot: from now on reads see what was written."""
        with self._reading, self._errors.translated():
            self._begin()

    def _begin(self) -> None:
        # The old transaction ends when nobody uses it any more: a reader on another thread may be inside its get.
        self._snapshot = self._env.begin(db=self._contents.entries)
        self._get = self._snapshot.get
        self.entries = self._contents.count(self._snapshot)

    @property
    def damaged(self) -> bool:
        """Whether damage was met since it was opened."""
        return self._errors.damaged

    def read(self, key: bytes) -> bytes:
        """The value in ``entries`` as of the last commit; empty if there is none. Any thread, at any time.

        LMDB runs without the interpreter lock, and the snapshot must not end under it: hence a lock of its own.
        """
        with self._reading:
            try:
                return self._get(key, b"")
            except lmdb.Error as error:
                raise self._errors.as_os_error(error) from error

    def rows(self, row_size: int) -> bytes:
        """Keys and values of all ``entries`` as of the last commit, one behind the other."""
        with self._reading, self._errors.translated():
            if not self._is_open:
                self._reopen()
            return self._contents.read_rows(self._snapshot, row_size)

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
        *,
        drop_entries: bool = False,
        drop_state: bool = False,
    ) -> None:
        """Everything in one transaction, which reads see after ``renew``. Sorted keys are faster.

        If this raises, reads see what they saw before, and ``has_failed`` is True.

        Keys of ``state`` are 1 to 511 bytes (ValueError); None removes one.
        """
        self._clear_stale_readers()
        entries = self._contents.entries
        self.has_failed = True
        while True:
            try:
                with prompt_switching(), self._errors.translated(), self._env.begin(write=True) as transaction:
                    if drop_entries:
                        transaction.drop(entries, delete=False)
                    if drop_state:
                        transaction.drop(self._contents.state, delete=False)
                    for key in deletes:
                        transaction.delete(key, db=entries)
                    transaction.cursor(entries).putmulti(puts)
                    self._write_state(transaction, state)
            except lmdb.MapFullError:
                self._grow()
            else:
                break
        self.has_failed = False

    def _clear_stale_readers(self) -> None:
        """A process that was killed while it read would hold its pages for ever, and the file would grow. Under 1 µs."""
        with self._errors.translated():
            self._env.reader_check()

    def _write_state(self, transaction: lmdb.Transaction[bytes], state: Mapping[bytes, bytes | None]) -> None:
        for key, value in state.items():
            if value is None:
                transaction.delete(key, db=self._contents.state)
            else:
                transaction.put(key, value, db=self._contents.state)
        transaction.put(LAYOUT_KEY, LAYOUT, db=self._contents.main)

    def _grow(self) -> None:
        """Double the map. LMDB demands that no transaction is open meanwhile; readers wait in :meth:`read`."""
        with self._reading, self._errors.translated():
            self._snapshot.abort()
            try:
                self._env.set_mapsize(2 * self._map_size)
            finally:
                self._begin()
            self._extend()

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        with self._errors.translated():
            self._env.sync(True)

    def close(self) -> None:
        """Let go of the files, without a commit. Closing twice is fine."""
        with self._reading:
            self._get = self._snapshot.get  # raises from now on, and opens nothing again
            self._env.close()
