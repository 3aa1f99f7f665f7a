"""LMDB's errors as errors of the operating system, with the path; and which of them say that the files are damaged."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import lmdb

_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError)


class DamagedError(OSError):
    """The files are not, or are no longer, an environment that can be used."""


class Errors:
    """Of one environment."""

    damaged = False
    """Whether damage was met: an LMDB transaction that has met some refuses every further call."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """ValueError for a key that LMDB cannot store; MapFullError as it is, to be handled; OSError for all else."""
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.BadValsizeError as error:
            raise ValueError(f"{self._path}: {error}") from error
        except lmdb.Error as error:
            raise self.as_os_error(error) from error

    def as_os_error(self, error: lmdb.Error) -> OSError:
        # py-lmdb has no class of its own for a file of an LMDB that it does not know.
        if isinstance(error, _DAMAGE) or error.code in (errno.EISDIR, errno.ENOTDIR) or "data format" in str(error):
            return self.damage(str(error))
        return OSError(error.code if error.code > 0 else errno.EIO, str(error), str(self._path))

    def damage(self, what: str) -> DamagedError:
        self.damaged = True
        return DamagedError(errno.EIO, what, str(self._path))
