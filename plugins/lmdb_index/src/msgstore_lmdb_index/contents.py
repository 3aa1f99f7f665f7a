"""What an environment of ours holds: the named databases ``entries`` and ``state``, and in the main one the key
``msgstore-lmdb`` with the number of this layout, which the first commit writes."""

from __future__ import annotations

import errno
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import lmdb

from msgstore_lmdb_index.errors import Errors
from msgstore_lmdb_index.switching import prompt_switching

if TYPE_CHECKING:
    Transaction: TypeAlias = lmdb.Transaction[bytes]

DATA, LOCK = "data.mdb", "lock.mdb"
LAYOUT_KEY, LAYOUT = b"msgstore-lmdb", b"1"
MAX_READERS = 1024
"""Transactions that read at one instant, 64 bytes each in ``lock.mdb``; said by whoever makes that file."""
_BATCH = 8192


def refuse_links(path: Path) -> None:
    """LMDB writes whatever these lead to, be it another program's file."""
    for name in (path, path / DATA, path / LOCK):
        if name.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link; put what it leads to in its place, or remove it", str(name))


def check_there(path: Path) -> None:
    data = path / DATA
    if not (data.exists() and data.stat().st_size):
        raise FileNotFoundError(errno.ENOENT, "no LMDB environment", str(path))


@attrs.frozen
class Contents:
    """The databases of one open environment. Raises what LMDB raises, but for damage that it does not see."""

    main: lmdb._Database
    entries: lmdb._Database
    state: lmdb._Database
    errors: Errors

    @classmethod
    def open(cls, env: lmdb.Environment, path: Path, errors: Errors, *, create: bool) -> Contents:
        """FileNotFoundError if they are not there, and are not to be made; DamagedError if the file was cut."""
        needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        size = (path / DATA).stat().st_size
        if size < needed:
            raise errors.damage(f"{size} bytes where LMDB has written {needed}")
        try:
            entries, state = (env.open_db(name, create=create) for name in (b"entries", b"state"))
        except lmdb.NotFoundError:
            raise FileNotFoundError(errno.ENOENT, "an LMDB environment without content", str(path)) from None
        return cls(env.open_db(), entries, state, errors)

    def count(self, transaction: Transaction) -> int:
        return int(transaction.stat(self.entries)["entries"])

    def read_state(self, transaction: Transaction) -> dict[bytes, bytes] | None:
        """None if nothing was ever committed."""
        layout = transaction.get(LAYOUT_KEY, db=self.main)
        if layout is None:
            return None
        if layout != LAYOUT:
            raise self.errors.damage(f"layout {layout!r}, not {LAYOUT!r}")
        return dict(transaction.cursor(self.state))

    def read_rows(self, transaction: Transaction, row_size: int) -> bytes:
        """Keys and values of all entries, one behind the other."""
        rows = bytearray()
        with prompt_switching():
            pieces = chain.from_iterable(transaction.cursor(self.entries))
            while chunk := b"".join(islice(pieces, _BATCH)):
                rows += chunk
        count = self.count(transaction)
        if len(rows) != count * row_size:
            raise self.errors.damage(f"{len(rows)} bytes in {count} entries of {row_size}")
        return bytes(rows)
