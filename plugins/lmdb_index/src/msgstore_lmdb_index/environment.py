"""One LMDB environment: opened with care, grown on demand, read through one snapshot. Knows bytes, not messages.

Its main database holds the named databases ``entries`` and ``state``, and the key ``msgstore-lmdb`` with the number of this
layout, which the first commit writes.

LMDB maps its file: reading a page behind the end of the file kills the process. Its own files can end before their last
page (a page that is allocated and freed in one transaction is not written), so on opening for writing the file is extended to
the whole map, sparsely; a file shorter than its last page is then one that something else has cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import lmdb

from msgstore_lmdb_index.switching import prompt_switching

_DATA = "data.mdb"
_LAYOUT_KEY, _LAYOUT = b"msgstore-lmdb", b"1"
_MINIMUM_MAP = 2**20
_MAP_STEP = 2**16
"""Bytes; a multiple of every page size."""
_BATCH = 8192

_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError)


class DamagedError(OSError):
    """The files are not, or are no longer, an environment that this module can use."""


class Environment:
    """``read`` and ``rows`` are called by any thread, also beside ``write``; everything else by one thread at a time, and
    nothing beside ``renew``. Raises OSError, DamagedError among them."""

    entries: int
    """Entries of the snapshot."""
    state: dict[bytes, bytes] | None
    """As found on opening; None if nothing was ever committed."""
    damaged = False
    """Whether damage was met since: an LMDB transaction that has met some refuses every further call."""

    def __init__(self, path: Path, *, map_size: int, sync: bool, read_only: bool) -> None:
        """Open ``path``, or make it. Read-only nothing is written or locked; FileNotFoundError if there is no environment."""
        self._path = path
        self._read_only = read_only
        self._reading = threading.Lock()
        data = path / _DATA
        if not read_only:
            self._refuse_links()
        if read_only and not (data.exists() and data.stat().st_size):
            raise FileNotFoundError(errno.ENOENT, "no LMDB environment", str(path))
        size = -(-max(map_size, _MINIMUM_MAP) // _MAP_STEP) * _MAP_STEP
        with self._translated():
            self._env = lmdb.Environment(
                str(path), map_size=size, max_dbs=2, max_spare_txns=1, readonly=read_only, lock=not read_only,
                create=not read_only, sync=sync, metasync=sync,
            )  # fmt: skip
        try:
            with self._translated():
                self._check_size()
                self._extend()
                self._open_databases()
                if sync and not read_only:
                    self._sync_names()
                self._begin()
                self.state = self._read_state()
        except BaseException:
            self._env.close()
            raise

    def _refuse_links(self) -> None:
        """LMDB writes whatever these lead to, be it another program's file."""
        for path in (self._path, self._path / _DATA, self._path / "lock.mdb"):
            if path.is_symlink():
                raise OSError(errno.ELOOP, "is a symbolic link; put what it leads to in its place, or remove it", str(path))

    def _check_size(self) -> None:
        needed = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        size = (self._path / _DATA).stat().st_size
        if size < needed:
            raise self._damage(f"{size} bytes where LMDB has written {needed}")

    def _extend(self) -> None:
        data, size = self._path / _DATA, self._env.info()["map_size"]
        if not self._read_only and data.stat().st_size < size:
            os.truncate(data, size)

    def _sync_names(self) -> None:
        """LMDB syncs its file but no directory: a power loss could take the file's name, and with it every count."""
        if os.name == "posix":  # elsewhere directories cannot be opened
            for directory in (self._path, self._path.parent):
                fd = os.open(directory, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def _open_databases(self) -> None:
        try:
            self._entries = self._env.open_db(b"entries", create=not self._read_only)
            self._state = self._env.open_db(b"state", create=not self._read_only)
        except lmdb.NotFoundError:
            raise FileNotFoundError(errno.ENOENT, "an LMDB environment without content", str(self._path)) from None

    def renew(self) -> None:
        """A new snapshot: from now on reads see what was written."""
        with self._reading, self._translated():
            self._begin()

    def _begin(self) -> None:
        # The old transaction ends when nobody uses it any more: a reader on another thread may be inside its get.
        self._snapshot: lmdb.Transaction[bytes] = self._env.begin(db=self._entries)
        self._get: Callable[[bytes, bytes], bytes] = self._snapshot.get
        self.entries = self._snapshot.stat(self._entries)["entries"]

    def _read_state(self) -> dict[bytes, bytes] | None:
        layout = self._snapshot.get(_LAYOUT_KEY, db=self._env.open_db())
        if layout is None:
            return None
        if layout != _LAYOUT:
            raise self._damage(f"layout {layout!r}, not {_LAYOUT!r}")
        return dict(self._snapshot.cursor(self._state))

    def read(self, key: bytes) -> bytes:
        """The value in ``entries`` as of the last commit; empty if there is none. Any thread, at any time.

        LMDB runs without the interpreter lock, and the snapshot must not end under it: hence a lock of its own.
        """
        with self._reading:
            try:
                return self._get(key, b"")
            except lmdb.Error as error:
                raise self._os_error(error) from error

    def rows(self, key_size: int, value_size: int) -> bytes:
        """Keys and values of all ``entries`` as of the last commit, one behind the other."""
        rows = bytearray()
        with prompt_switching(), self._reading, self._translated():
            pieces = chain.from_iterable(self._snapshot.cursor(self._entries))
            while chunk := b"".join(islice(pieces, _BATCH)):
                rows += chunk
        if len(rows) != self.entries * (key_size + value_size):
            raise self._damage(f"entries of other sizes than {key_size} and {value_size} bytes")
        return bytes(rows)

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
        *,
        drop_entries: bool = False,
        drop_state: bool = False,
    ) -> None:
        """Everything in one transaction, which reads see after ``renew``. If it raises, nothing has changed. Sorted keys are
        faster.

        Keys of ``state`` are 1 to 511 bytes (ValueError); None removes one.
        """
        while True:
            try:
                with prompt_switching(), self._translated(), self._env.begin(write=True) as transaction:
                    if drop_entries:
                        transaction.drop(self._entries, delete=False)
                    if drop_state:
                        transaction.drop(self._state, delete=False)
                    for key in deletes:
                        transaction.delete(key, db=self._entries)
                    transaction.cursor(self._entries).putmulti(puts)
                    self._write_state(transaction, state)
            except lmdb.MapFullError:
                self._grow()
            else:
                break

    def _write_state(self, transaction: lmdb.Transaction[bytes], state: Mapping[bytes, bytes | None]) -> None:
        for key, value in state.items():
            if value is None:
                transaction.delete(key, db=self._state)
            else:
                transaction.put(key, value, db=self._state)
        transaction.put(_LAYOUT_KEY, _LAYOUT, db=self._env.open_db())

    def _grow(self) -> None:
        """Double the map. LMDB demands that no transaction is open meanwhile; readers wait in :meth:`read`."""
        with self._reading, self._translated():
            self._snapshot.abort()
            try:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            finally:
                self._begin()
            self._extend()

    def close(self) -> None:
        """Let go of the files, without a commit. Closing twice is fine."""
        with self._reading:
            self._env.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.BadValsizeError as error:
            raise ValueError(f"{self._path}: {error}") from error
        except lmdb.Error as error:
            raise self._os_error(error) from error

    def _os_error(self, error: lmdb.Error) -> OSError:
        # py-lmdb has no class of its own for a file of an LMDB that it does not know.
        if isinstance(error, _DAMAGE) or error.code in (errno.EISDIR, errno.ENOTDIR) or "data format" in str(error):
            return self._damage(str(error))
        return OSError(error.code if error.code > 0 else errno.EIO, str(error), str(self._path))

    def _damage(self, what: str) -> DamagedError:
        self.damaged = True
        return DamagedError(errno.EIO, what, str(self._path))
