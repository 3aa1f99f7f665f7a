"""One LMDB environment of keys and values: validated when it is opened, grown on demand, read through one snapshot.

LMDB maps its file, so reading a page after the end of the file kills the process. A sound file can end before its last page,
because LMDB does not write a page that is allocated and freed in one transaction. Opening for writing therefore extends the
file to the size of the map, sparsely. A file shorter than its last page was then truncated by something else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import lmdb

from msgstore.contract import StoreError
from msgstore_lmdb_index.contents import (
    LAYOUT,
    LAYOUT_KEY,
    LOCK,
    MAX_READERS,
    Contents,
    DamagedError,
    ErrorTranslator,
    check_exists,
    refuse_special_files,
    reserve_lock_file,
    short_switch_interval,
)
from msgstore_lmdb_index.rescue import DATA

_MINIMUM_MAP = 2**20
_MAP_STEP = 2**16
"""Bytes; a multiple of every page size."""
_COPIED_AT_ONCE = 2**16


def _make_private(path: Path) -> None:
    """Replace files with further hard links by copies: LMDB would write into a copy of the directory (``cp -al``), too.

    The lock file comes first: a reader that opens the environment in between notices the new data file. Raises OSError.
    """
    if _is_shared(path / LOCK):
        (path / LOCK).unlink()
    data, copy = path / DATA, path / f"{DATA}.tmp"
    with contextlib.suppress(NotADirectoryError):
        copy.unlink(missing_ok=True)  # of an opening that was killed
    if not _is_shared(data):
        return
    try:
        with data.open("rb") as source, copy.open("xb") as target:
            status = os.fstat(source.fileno())
            os.fchmod(target.fileno(), stat.S_IMODE(status.st_mode))
            with contextlib.suppress(PermissionError):  # of another user: the mode says who may read it
                os.fchown(target.fileno(), status.st_uid, status.st_gid)
            while chunk := source.read(_COPIED_AT_ONCE):
                if chunk.count(0) < len(chunk):
                    target.write(chunk)
                else:
                    target.seek(len(chunk), os.SEEK_CUR)  # it stays sparse
            target.truncate()
            os.fsync(target.fileno())
        copy.replace(data)
    except OSError as error:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
        what = f"{data} has another hard link, and no copy of it can be made: {error.strerror}"
        raise OSError(error.errno, what, str(copy)) from error
    _sync_directory(path)


def _is_shared(path: Path) -> bool:
    return path.is_file() and path.stat().st_nlink > 1


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Environment:
    """LMDB environment of a store that is open for writing, or read-only without a writer.

    Methods raise OSError, or its subclass DamagedError. Any thread calls ``read`` and ``rows``, also during ``write``;
    during ``renew`` they wait. All other methods are called by one thread at a time.
    """

    entries: int
    """Number of entries in the snapshot."""
    state: dict[bytes, bytes] | None
    """State found when the environment was opened; None if nothing was ever committed."""
    has_failed: bool
    """True if a transaction has failed: the environment must be reopened before the next one."""

    _get: Callable[[bytes, bytes], bytes]

    def __init__(self, path: Path, *, map_size: int, sync: bool, read_only: bool) -> None:
        """Open the environment ``path``, or create it. ``map_size`` is in bytes.

        With ``read_only``, nothing is written or locked, and a missing environment raises FileNotFoundError.
        """
        self._path = path
        self._errors = ErrorTranslator(path)
        self._read_only = read_only
        self._read_lock = threading.Lock()
        if not read_only:
            refuse_special_files(path)
            _make_private(path)
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
        if not create:  # LMDB creates a missing file even with create=False
            check_exists(self._path)
        elif not os.path.lexists(self._path):
            self._path.mkdir()
        if not self._read_only:
            reserve_lock_file(self._path)
        with self._errors.translated():
            self._env = lmdb.Environment(
                str(self._path), map_size=self._map_size, max_dbs=2, max_spare_txns=1, readonly=self._read_only,
                lock=not self._read_only, create=create, sync=self._sync, metasync=self._sync, max_readers=MAX_READERS,
            )  # fmt: skip
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
        """Close and reopen the environment: after a failed write of a meta page, LMDB refuses every transaction.

        Takes the read lock, so reads wait. The new snapshot may or may not contain the failed transaction. Raises OSError if
        the environment cannot be opened: every later read and ``reopen`` then tries again.
        """
        with self._read_lock:
            self._reopen()

    def _reopen(self) -> None:
        """Close and reopen the environment. Caller holds the read lock."""
        self._get, self._is_open = self._reopen_and_read, False
        self._env.close()  # also ends the snapshot
        try:
            self._open(create=False)  # a new environment in place of a missing one would look like an empty index
        except DamagedError:
            raise
        except (OSError, StoreError) as error:  # StoreError: another thread has opened the environment
            reason = getattr(error, "strerror", None) or error
            what = f"the index could not be reopened after a failed write: {reason}"
            raise OSError(getattr(error, "errno", None) or errno.EBUSY, what, str(self._path)) from error

    def _reopen_and_read(self, key: bytes, default: bytes) -> bytes:
        self._reopen()
        return self._get(key, default)

    def _extend(self) -> None:
        """Extend the data file to the size of the map, sparsely, unless read-only."""
        data, size = self._path / DATA, self._env.info()["map_size"]
        if not self._read_only and data.stat().st_size < size:
            os.truncate(data, size)
        self._map_size = size

    def _sync_names(self) -> None:
        """Sync the directories: LMDB syncs only its file, and a power loss could remove the file's name with every count."""
        for directory in (self._path, self._path.parent):
            _sync_directory(directory)

    def renew(self) -> None:
        """Replace the snapshot: later reads see the last commit. Takes the read lock."""
        with self._read_lock, self._errors.translated():
            self._begin()

    def _begin(self) -> None:
        # The old transaction is not aborted here: another thread may be inside its get. It ends with its last reference.
        self._snapshot = self._env.begin(db=self._contents.entries)
        self._get = self._snapshot.get
        self.entries = self._contents.count(self._snapshot)

    @property
    def damaged(self) -> bool:
        """True if damage was found since this object was created."""
        return self._errors.damaged

    def read(self, key: bytes) -> bytes:
        """Return the value of ``key`` in ``entries`` as of the snapshot; empty if there is none. Thread-safe.

        Takes the read lock: LMDB runs without the interpreter lock, and the snapshot must not end during the call.
        """
        with self._read_lock:
            try:
                return self._get(key, b"")
            except lmdb.Error as error:
                raise self._errors.as_os_error(error) from error

    def rows(self, row_size: int) -> bytes:
        """Return the keys and values of all ``entries`` as of the snapshot, concatenated. Thread-safe."""
        with self._read_lock, self._errors.translated():
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
        """Write all changes in one transaction, which reads see after ``renew``. Sorted keys are faster.

        A value of None removes a key of ``state``. Raises ValueError if a key does not have 1 to 511 bytes. After an error,
        reads see the previous contents, and ``has_failed`` is True.
        """
        self._clear_stale_readers()
        entries = self._contents.entries
        self.has_failed = True
        while True:
            try:
                with short_switch_interval(), self._errors.translated(), self._env.begin(write=True) as transaction:
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
        """Free the slots of killed readers: they would keep old pages in use, and the file would grow. Takes under 1 µs."""
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
        """Double the map. LMDB requires that no transaction is open, so this takes the read lock and ends the snapshot."""
        with self._read_lock, self._errors.translated():
            self._snapshot.abort()
            try:
                self._env.set_mapsize(2 * self._map_size)
            finally:
                self._begin()
            self._extend()

    def sync(self) -> None:
        """Force all written data to disk."""
        with self._errors.translated():
            self._env.sync(True)

    def close(self) -> None:
        """Close the files without a commit. A second call does nothing."""
        with self._read_lock:
            self._get = self._snapshot.get  # later reads raise, and do not reopen the environment
            self._env.close()
