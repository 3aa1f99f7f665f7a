"""Databases of the index's LMDB environment, and its errors: OSError with the path, or DamagedError.

The named databases are ``entries`` and ``state``. The main database has the key ``msgstore-lmdb`` with the layout number. The
first commit writes that key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import lmdb

from msgstore.contract import StoreError
from msgstore_lmdb_index.rescue import DATA, has_sound_tree

if TYPE_CHECKING:
    Transaction: TypeAlias = lmdb.Transaction[bytes]

LOCK = "lock.mdb"
LAYOUT_KEY, LAYOUT = b"msgstore-lmdb", b"1"
MAX_READERS = 1024
"""Maximum number of concurrent read transactions, 64 bytes each in ``lock.mdb``. The process that creates this file sets it."""
_LOCK_BYTES = 128 + 64 * MAX_READERS
_BATCH = 8192


_SHORT_INTERVAL_SECONDS = 1e-5
"""Shorter intervals brought no further gain."""

_lock = threading.Lock()
_active_blocks = 0
_original_interval = 0.0


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Reduce the switch interval of this process to at most 10 µs during the block. Thread-safe; blocks may overlap.

    py-lmdb releases the interpreter lock in every call and acquires it again afterwards. While another thread computes,
    acquiring it takes one switch interval, 5 ms by default: most of a minute for 10,000 puts.
    """
    global _active_blocks, _original_interval
    with _lock:
        if not _active_blocks:
            _original_interval = sys.getswitchinterval()
            sys.setswitchinterval(min(_original_interval, _SHORT_INTERVAL_SECONDS))
        _active_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _active_blocks -= 1
            if not _active_blocks:
                sys.setswitchinterval(_original_interval)


_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,  # LMDB has found damage in an earlier call of the transaction
)

_IN_USE = "already open in this process"
"""Text of py-lmdb's error for a second opening, also of an environment that was open before a fork. It has no own class."""


class DamagedError(OSError):
    """Raised for files that are not a usable LMDB environment."""


class ErrorTranslator:
    """Translator of the errors of one environment. Records if damage was found."""

    damaged = False
    """True if damage was found. LMDB then refuses every further call of the transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the errors of the block.

        Raises ValueError for a key that LMDB cannot store, StoreError if this process already has the environment open, and
        OSError for all other errors. MapFullError passes unchanged, because the caller handles it.
        """
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.BadValsizeError as error:
            raise ValueError(f"{self._path}: {error}") from error
        except lmdb.Error as error:
            if _IN_USE in str(error):
                raise StoreError(
                    f"{self._path}: is already open in this process, or in the one it was forked from, and LMDB opens a file "
                    f"only once per process. Use the open store, or close it first. Start a child process with "
                    f"multiprocessing's method 'spawn', or fork before opening the store."
                ) from error
            raise self.as_os_error(error) from error

    def as_os_error(self, error: lmdb.Error) -> OSError:
        """Return ``error`` as an OSError with the path, or as a DamagedError if it shows damage."""
        # For a file of an unknown LMDB version, py-lmdb raises the base class: only the text identifies it.
        if isinstance(error, _DAMAGE) or error.code in (errno.EISDIR, errno.ENOTDIR) or "data format" in str(error):
            return self.damage(str(error))
        return OSError(error.code if error.code > 0 else errno.EIO, str(error), str(self._path))

    def damage(self, what: str) -> DamagedError:
        """Set ``damaged`` and return a DamagedError with this text, to be raised by the caller."""
        self.damaged = True
        return DamagedError(errno.EIO, what, str(self._path))


def refuse_special_files(path: Path) -> None:
    """Raise OSError if the directory or an LMDB file is a symbolic link, whose target LMDB would write to, or a pipe or a
    device, which LMDB would wait for."""
    for name in (path, path / DATA, path / LOCK):
        if name.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link; replace it with its target, or remove it", str(name))
        if name.exists() and not (name.is_file() or name.is_dir()):
            raise OSError(errno.EINVAL, "is a pipe, a socket or a device; remove it", str(name))


def reserve_lock_file(path: Path) -> None:
    """Create ``lock.mdb`` with room for all readers, if it is missing or empty. Raises OSError on a full disk.

    LMDB creates it sparse and writes it through a map: a page without room on the disk would end the process (SIGBUS). A file
    with content is not opened: closing it would release the locks that LMDB has on it in this process.
    """
    lock = path / LOCK
    if not hasattr(os, "posix_fallocate") or not path.is_dir() or (lock.exists() and lock.stat().st_size):
        return
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    except OSError as error:
        os.ftruncate(fd, 0)
        raise OSError(error.errno, error.strerror, str(lock)) from error
    finally:
        os.close(fd)


def check_exists(path: Path) -> None:
    """Raise FileNotFoundError if ``path`` has no LMDB data file, or an empty one."""
    data = path / DATA
    if not (data.exists() and data.stat().st_size):
        raise FileNotFoundError(errno.ENOENT, "no LMDB environment", str(path))


@attrs.frozen
class Contents:
    """Databases of one open environment. Methods raise LMDB's errors, and DamagedError for damage that LMDB does not detect."""

    main: lmdb._Database
    entries: lmdb._Database
    state: lmdb._Database
    errors: ErrorTranslator
    path: Path

    @classmethod
    def open(cls, env: lmdb.Environment, path: Path, errors: ErrorTranslator, *, create: bool) -> Contents:
        """Open the databases, and create them if ``create`` is True.

        Raises FileNotFoundError if they are missing and ``create`` is False, and DamagedError if the file was truncated.
        """
        needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        size = (path / DATA).stat().st_size
        if size < needed:
            raise errors.damage(f"the file has {size} bytes, but LMDB has written {needed}")
        try:
            entries, state = (env.open_db(name, create=create) for name in (b"entries", b"state"))
        except lmdb.NotFoundError:
            raise FileNotFoundError(errno.ENOENT, "an LMDB environment without content", str(path)) from None
        return cls(env.open_db(), entries, state, errors, path)

    def count(self, transaction: Transaction) -> int:
        return int(transaction.stat(self.entries)["entries"])

    def read_state(self, transaction: Transaction) -> dict[bytes, bytes] | None:
        """Return the committed state, or None if nothing was ever committed."""
        layout = transaction.get(LAYOUT_KEY, db=self.main)
        if layout is None:
            return None
        if layout != LAYOUT:
            raise self.errors.damage(f"layout {layout!r}, not {LAYOUT!r}")
        self._check_tree(b"state", transaction)
        return dict(transaction.cursor(self.state))

    def _check_tree(self, name: bytes, transaction: Transaction) -> None:
        """Raise DamagedError if LMDB cannot safely go through all entries of a database. A twentieth of the time of that."""
        if not has_sound_tree(self.path, name, transaction.id()):
            raise self.errors.damage(f"the database {name.decode()} has pages of a wrong kind")

    def read_rows(self, transaction: Transaction, row_size: int) -> bytes:
        """Return the keys and values of all entries, concatenated. Raises DamagedError if they are not ``row_size`` each."""
        self._check_tree(b"entries", transaction)
        rows = bytearray()
        with short_switch_interval():
            pieces = chain.from_iterable(transaction.cursor(self.entries))
            while chunk := b"".join(islice(pieces, _BATCH)):
                rows += chunk
        count = self.count(transaction)
        if len(rows) != count * row_size:
            raise self.errors.damage(f"{len(rows)} bytes in {count} entries of {row_size}")
        return bytes(rows)
