"""Translation of LMDB's errors to OSError with the path; errors that show damage become DamagedError."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import lmdb

from msgstore.contract import StoreError

_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError)

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
