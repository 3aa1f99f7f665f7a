"""The directory beside a destination in which a job builds: whose it is, and how what killed jobs left is cleared away.

It is named ``.NAME.msgstore-`` and 16 hexadecimal digits, and holds a locked file as a store does. The lock is the operating
system's and ends with the process that drives the job, however that ends; so a directory whose lock can be had is left over.
Workers of a killed driver may write on for a while. So a left-over directory is first given a name that none of them knows,
one with 32 digits, and then deleted: they find no directory for their next file, and nothing comes back.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from msgstore import forking
from msgstore.contract import StoreClosed, StoreError, StoreIOError, StoreLocked
from msgstore.files import Files
from msgstore.jobs.output import lock_keeper
from msgstore.writer_lock import WriterLock

log = logging.getLogger("msgstore.bulk")

PARTS = "parts"
"""The directory of all attempts of tasks, in that of the job."""
NOTHING = "Nothing was kept"
_ATTEMPTS = 5


class StagingDirectory:
    """One job that makes something new: a directory beside the destination, locked while the job lives.

    Used by one thread of the process that drives the job. A context manager: what is not published when it is left, is
    deleted. Until then there is nothing at the destination, or what was there: an empty directory.
    """

    def __init__(
        self, destination: Path, path: Path | str, lock: WriterLock | None, files: Files, nothing: str = NOTHING
    ) -> None:
        """``lock``: None if another process has it. ``nothing`` is what an error says of the result."""
        self.destination = destination
        self.path = str(path)
        """Path of the staging directory, which each worker gets."""
        self._lock = lock
        self._files = files
        self._nothing = nothing
        self._open = True
        forking.watch(self)

    def hand_over(self, pid: int) -> None:
        """The job goes on without this process: it lasts until process ``pid`` ends, or somebody who joins it ends it.

        Raises StoreError where descriptors cannot be handed to other processes (Windows).
        """
        if self._lock is not None:
            if os.name != "posix":
                raise StoreError(f"{self.destination}: a job cannot change its process here; use the local engine")
            fd = self._lock.hand_over(pid)
            try:
                with errors(self.destination, self._nothing):
                    lock_keeper.start(fd, pid, self.path)
            finally:
                os.close(fd)
        self._open = False

    def publish(self, make: Callable[[], Path]) -> None:
        """Sync the directory that ``make`` returns, and give it its final name and the permissions of an empty directory there.
        Nothing else is left, whatever happens.

        Raises StoreError, StoreIOError; an error of the very last step, the sync of the name, says that everything is there.
        """
        if not self._open:
            raise StoreClosed(f"{self.path}: this job has ended")
        try:
            with errors(self.destination, self._nothing):
                content = make()
                sync_tree(self._files, content)
                try:
                    if self.destination.is_dir():
                        self._files.copy_permissions(self.destination, content)
                        if os.name == "nt":
                            self.destination.rmdir()  # elsewhere a directory may take an empty one's place
                    self._files.replace(content, self.destination)
                except OSError as error:
                    _check_free(self.destination)
                    raise error from None
        finally:
            self.abandon()
        try:
            self._files.sync_directory(self.destination.parent)
        except OSError as error:
            raise StoreIOError(
                f"{self.destination.parent}: {error.strerror or error}. Everything is at {self.destination}, and whole; "
                "whether its name outlasts a power loss is not known."
            ) from error

    def abandon(self) -> None:
        """Nothing is left. Raises nothing; nothing to do if the job was committed or abandoned. Workers that are still writing
        fail at their next file."""
        if self._open:
            self._open = False
            try:
                clear(self._files, Path(self.path))
            finally:
                if self._lock is not None:
                    self._lock.release()

    def disown(self) -> None:
        """In a child, right after the fork: the job, and its lock, stay the parent's."""
        self._open = False
        if self._lock is not None:
            self._lock.disown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()


def claim(files: Files, destination: Path, sources: Iterable[str | Path], *directories: str) -> tuple[Path, WriterLock]:
    """Check the destination, clear away what killed jobs for it left, and make a staging directory with ``directories`` in it.

    ``sources`` are the directories that the job reads. Raises OSError; StoreError if the destination is in use, or would lie
    inside a source; StoreLocked if another job is writing there.
    """
    _check_place(destination, sources)
    remove_stale(files, destination)
    _check_free(destination)
    path, lock = create_locked(files, destination)
    try:
        for name in directories:
            files.create_directory(path / name)
    except BaseException:
        StagingDirectory(destination, path, lock, files).abandon()
        raise
    return path, lock


@contextmanager
def working_directory(files: Files, destination: Path) -> Iterator[Path]:
    """A new directory beside ``destination`` that is gone in the end; what killed jobs left there is cleared away first.

    Raises OSError, StoreLocked.
    """
    remove_stale(files, destination)
    path, lock = create_locked(files, destination)
    with StagingDirectory(destination, path, lock, files):
        yield path


@contextmanager
def errors(place: Path, nothing: str = NOTHING) -> Iterator[None]:
    """Say where an error of the operating system happened, ``place`` if it does not say it, and what became of the job."""
    try:
        yield
    except (OSError, StoreError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or isinstance(error, StoreLocked):
            raise
        where = cause.filename2 or cause.filename or place
        raise StoreIOError(
            f"{where}: {cause.strerror or cause}. {nothing}; mend the cause (space, limits, permissions, the disk) and run the "
            f"job again."
        ) from cause


def check_destination(destination: Path, sources: Iterable[str | Path] = ()) -> None:
    """Raises StoreError if a job that reads ``sources`` cannot make anything there. ``claim`` asks, too."""
    _check_place(destination, sources)
    _check_free(destination)


def _check_place(destination: Path, sources: Iterable[str | Path]) -> None:
    for source in sources:
        if destination.resolve().is_relative_to(Path(source).resolve()):
            raise StoreError(f"{destination}: lies inside {source}, into which nothing is written; choose another place")
    if not destination.parent.is_dir():
        raise StoreError(f"{destination.parent}: there is no such directory; make it, or choose another place")


def _check_free(destination: Path) -> None:
    if destination.is_symlink() or (destination.exists() and not (destination.is_dir() and not any(destination.iterdir()))):
        raise StoreError(f"{destination}: is there already, and is not an empty directory; choose a new name")
    if os.path.ismount(destination):
        raise StoreError(f"{destination}: a file system is mounted there, and no rename replaces that; choose a name inside it")
    if destination.is_dir() and destination.samefile("."):
        raise StoreError(f"{destination}: is the working directory, and would be replaced; go elsewhere, or choose a new name")


def sync_tree(files: Files, top: Path) -> None:
    """Sync every file below ``top``, and the directories. Raises OSError."""
    for directory, _, names in os.walk(top, topdown=False):
        for name in names:
            fd = files.open_write(Path(directory, name))
            try:
                files.sync(fd)
            finally:
                files.close(fd)
        files.sync_directory(Path(directory))


def create_locked(files: Files, destination: Path) -> tuple[Path, WriterLock]:
    """A new directory beside ``destination``, and its lock. Raises OSError, StoreLocked."""
    for _ in range(_ATTEMPTS):
        path = destination.with_name(f".{destination.name}.msgstore-{secrets.token_hex(8)}")
        files.create_directory(path)
        try:
            lock = WriterLock(path)
        except (FileNotFoundError, StoreLocked):  # another job saw it before it was locked, and cleared it away
            continue
        if lock.is_in(path):
            return path, lock
        lock.release()
    raise StoreLocked(f"{destination}: other jobs are clearing away what is beside it; try again")


def clear(files: Files, path: Path) -> None:
    """Delete the directory of a job that has ended; its lock is ours, or nobody's. What cannot be deleted is left for later."""
    pending_erase = path.with_name(f"{path.name.rpartition('-')[0]}-{secrets.token_hex(16)}")
    try:
        files.replace(path, pending_erase)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s cannot be moved away: %s", path, error)
        pending_erase = path
    with suppress(OSError):
        files.remove_tree(pending_erase)


def remove_stale(files: Files, destination: Path) -> None:
    """Clear away what killed jobs for ``destination`` left. Raises StoreLocked if one is alive, OSError."""
    ours = re.compile(rf"\.{re.escape(destination.name)}\.msgstore-([0-9a-f]{{16}}|[0-9a-f]{{32}})")
    for path in destination.parent.iterdir():
        match = ours.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_dir():
            continue
        if len(match[1]) == 32:
            files.remove_tree(path)
            continue
        try:
            lock = WriterLock(path)
        except FileNotFoundError:
            continue
        except StoreLocked as error:
            who = "another process" if error.pid is None else f"process {error.pid}"
            raise StoreLocked(
                f"{destination}: {who} is writing a store there, in {path.name} beside it. Wait until it is done, or end it.",
                error.pid,
            ) from error
        except StoreError as error:
            log.warning("%s is left as it is: %s", path, error)
            continue
        try:
            if lock.is_in(path):
                log.info("%s was left by a job that was killed, and is deleted", path)
                clear(files, path)
        finally:
            lock.release()
