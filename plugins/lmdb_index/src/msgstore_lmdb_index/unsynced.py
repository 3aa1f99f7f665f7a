"""Mark for an LMDB file that is written without syncs, and the check of such a file after a power loss.

LMDB does not overwrite a page that its last meta page leads to. Its file is therefore sound after a power loss if writes reach
the disk in order. Without syncs the order is not guaranteed: a meta page may lead to pages that were never written, and LMDB
then ends the process (SIGABRT, SIGBUS, SIGSEGV).

The mark is the file ``unsynced`` next to LMDB's file. It has the system's boot id. It is written and synced before the first
unsynced commit, and removed when LMDB's file is synced at a clean shutdown. A mark with another boot id means that the file
must be checked before LMDB maps it.
"""

from __future__ import annotations

import errno
from pathlib import Path

from lmdb.verify import VerifyError, verify

from msgstore.contract import FileOperations
from msgstore_lmdb_index.contents import ErrorTranslator
from msgstore_lmdb_index.rescue import DATA

MARK = "unsynced"
UNKNOWN = b"unknown"
"""Substitute for the boot id on a system without one. Two such marks may be of different boots."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return the boot id of the system, or ``UNKNOWN``."""
    try:
        return _BOOT_ID.read_bytes().strip() or UNKNOWN
    except OSError:
        return UNKNOWN


class UnsyncedMark:
    """File ``unsynced`` in the directory of one environment."""

    is_set = False
    """True if this object has written the mark and not removed it."""

    def __init__(self, path: Path, files: FileOperations) -> None:
        self._path = path / MARK
        self._files = files

    @property
    def exists(self) -> bool:
        """True if the file exists."""
        return self._path.exists()

    def is_of_other_boot(self, *, unless_unknown: bool = False) -> bool:
        """Return True if the mark exists and the machine may have stopped since it was written.

        If a boot id is unknown, returns True, or False with ``unless_unknown``.
        """
        try:
            marked, booted = self._files.read_file(self._path), boot_id()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if UNKNOWN in (marked, booted):
            return not unless_unknown
        return marked != booted

    def set(self) -> None:
        """Write and sync the mark, unless this object already has. Called before each unsynced commit."""
        if not self.is_set:
            self._files.write_file(self._path, [boot_id()], sync=True)
            self.is_set = True

    def remove(self) -> None:
        """Delete the mark. Called after LMDB's file was synced or found sound."""
        self._files.unlink(self._path)
        self.is_set = False


def check(path: Path, errors: ErrorTranslator) -> None:
    """Raise DamagedError if LMDB cannot safely read and write the file. Reads all of it, about 30 MB/s, without mapping it."""
    data = path / DATA
    if not data.is_file() or not data.stat().st_size:
        return  # LMDB handles a missing or empty file
    try:
        problems: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        problems = [str(error)]
    except VerifyError as error:
        problems = [str(error)]
    except Exception as error:  # damaged bytes can make the verifier raise anything
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        what = f"{len(problems)} faults were found after the machine had stopped without a clean shutdown; first: {problems[0]}"
        raise errors.damage(what)
