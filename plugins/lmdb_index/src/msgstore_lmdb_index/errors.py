"""LMDB's errors as errors of the operating system, with the path; and which of them say that the files are damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import lmdb

from msgstore.contract import StoreError

_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError)


_IN_USE = "already open in this process"
"""What py-lmdb says, which has no class and no code for it, of a second opening; of one before a fork, too."""


class DamagedError(OSError):
    """The files are not, or are no longer, an environment that can be used."""


class Errors:
    """Of one environment."""

    _open: ClassVar[weakref.WeakValueDictionary[str, Errors]] = weakref.WeakValueDictionary()
    """Whose environment is the last one that was opened at a path. A forked child has a copy."""

    damaged = False
    """Whether damage was met: an LMDB transaction that has met some refuses every further call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()

    def opened(self) -> None:
        """LMDB has opened the environment."""
        self._open[os.path.realpath(self._path)] = self

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """ValueError for a key that LMDB cannot store; MapFullError as it is, to be handled; StoreError if this process has the
        environment open; OSError for all else."""
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.BadValsizeError as error:
            raise ValueError(f"{self._path}: {error}") from error
        except lmdb.Error as error:
            if _IN_USE in str(error):
                raise self._in_use() from error
            raise self.as_os_error(error) from error

    def as_os_error(self, error: lmdb.Error) -> OSError:
        # py-lmdb has no class of its own for a file of an LMDB that it does not know.
        if isinstance(error, _DAMAGE) or error.code in (errno.EISDIR, errno.ENOTDIR) or "data format" in str(error):
            return self.damage(str(error))
        return OSError(error.code if error.code > 0 else errno.EIO, str(error), str(self._path))

    def _in_use(self) -> StoreError:
        """No OSError: nothing is wrong with the files, and nothing helps that would help there."""
        other = self._open.get(os.path.realpath(self._path))
        if other is not None and other._pid != self._pid:
            return StoreError(
                f"{self._path}: is open in process {other._pid}, which this process was forked from, and LMDB cannot open it "
                f"again here. Start this process fresh (multiprocessing: method 'spawn'), or fork before the store is opened."
            )
        return StoreError(
            f"{self._path}: is open in this process already, and LMDB opens it once a process. Use the store that is open, or "
            f"close that one first."
        )

    def damage(self, what: str) -> DamagedError:
        self.damaged = True
        return DamagedError(errno.EIO, what, str(self._path))
