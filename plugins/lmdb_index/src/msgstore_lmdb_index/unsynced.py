"""Files that LMDB writes without syncs, and what a power loss leaves of them.

LMDB replaces no page that its last meta page leads to, so its file is sound after a power loss if writes reach the disk in
their order. Without syncs they need not: then a meta page may lead to pages that were never written, and LMDB ends the process
(SIGABRT, SIGBUS, SIGSEGV) when it follows it. Hence a mark, the file ``unsynced`` beside LMDB's, with the id of the system's
boot. It is synced before the first commit that is not, and removed when LMDB's file is synced, at a clean stop. A mark of
another boot says that the file must be checked before LMDB maps it.
"""

from __future__ import annotations

import errno
from pathlib import Path

from lmdb.verify import VerifyError, verify

from msgstore.contract import FileOperations
from msgstore_lmdb_index.contents import DATA
from msgstore_lmdb_index.errors import Errors

MARK = "unsynced"
UNKNOWN = b"unknown"
"""In the place of a boot id, where the system has none. Any boot may be another one then."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    try:
        return _BOOT_ID.read_bytes().strip() or UNKNOWN
    except OSError:
        return UNKNOWN


class Mark:
    """Of one environment's directory."""

    is_set = False
    """Whether it was set by this object."""

    def __init__(self, path: Path, files: FileOperations) -> None:
        self._path = path / MARK
        self._files = files

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def is_of_other_boot(self, *, unless_unknown: bool = False) -> bool:
        """Whether the machine may have stopped since LMDB's file was synced."""
        try:
            marked, booted = self._files.read_file(self._path), boot_id()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if UNKNOWN in (marked, booted):
            return not unless_unknown
        return marked != booted

    def set(self) -> None:
        """Before the first commit that is not synced."""
        if not self.is_set:
            self._files.write_file(self._path, [boot_id()], sync=True)
            self.is_set = True

    def remove(self) -> None:
        """After LMDB's file was synced, or found to be sound."""
        self._files.unlink(self._path)
        self.is_set = False


def check(path: Path, errors: Errors) -> None:
    """Raise DamagedError if LMDB could not read or write the file. Reads all of it, about 30 MB a second; maps nothing."""
    data = path / DATA
    if not data.is_file() or not data.stat().st_size:
        return  # LMDB copes with that
    try:
        problems: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        problems = [str(error)]
    except VerifyError as error:
        problems = [str(error)]
    except Exception as error:  # whatever strange bytes may lead to
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        what = f"{len(problems)} faults were found after the machine had stopped without a clean stop; the first: {problems[0]}"
        raise errors.damage(what)
