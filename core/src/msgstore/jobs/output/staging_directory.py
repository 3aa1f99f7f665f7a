"""Staging directory of a job, next to the destination: creation, lock, publication, and cleanup after killed jobs.

For the destination ``NAME`` it is in ``.NAME.msgstore``, which is locked as a store is. The lock is the operating system's,
and ends with the process that drives the job. Each job works in a new directory inside, with a random name. Tasks of a killed
job may continue to write for a while. So what is deleted is renamed first: these tasks fail at their next file, and nothing
comes back.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from msgstore import forking
from msgstore.contract import BrokenPlugin, StoreClosed, StoreError, StoreIOError, StoreLocked
from msgstore.directory import LOCK
from msgstore.files import Files
from msgstore.plugins.blame import blame
from msgstore.writer_lock import WriterLock

PARTS = "parts"
"""Directory of all attempts of tasks, in the staging directory."""
_POLL_SECONDS = 0.5
_keepers: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started to keep locks. They are not awaited; Python would warn if one was garbage-collected."""


class StagingDirectory:
    """Directory next to the destination in which one job creates its result. Locked while the job lives.

    Used by one thread of the process that drives the job. A context manager: on exit, everything that is not published is
    deleted. Until then the destination does not exist, or is the empty directory that it was.
    """

    def __init__(self, destination: Path, path: Path | str, lock: WriterLock | None, files: Files) -> None:
        """``lock``: None if another process has it."""
        self.destination = destination
        self.path = str(path)
        """Path of the staging directory, for the tasks."""
        self._lock = lock
        self._files = files
        self._open = True
        forking.watch(self)

    @classmethod
    def create_locked(
        cls, destination: Path, sources: Iterable[str | Path] = (), files: Files | None = None, *, publishes: bool = True
    ) -> Self:
        """Check the destination, delete what killed jobs for it left, and begin a job.

        ``sources`` are paths that the job reads. Without ``publishes`` nothing gets the name ``destination``, which may exist.

        Raises StoreIOError; StoreError if the destination exists, or is inside a source; StoreLocked if another job creates it.
        """
        files = files or Files()
        place = destination.parent / f".{destination.name}.msgstore"
        ending = StoreLocked(f"{destination}: another job has just ended, and deletes {place.name} beside it. Try again.")
        with errors(destination):
            _check_place(destination, sources)
            with suppress(FileExistsError):
                files.create_directory(place)
            try:
                lock = WriterLock(place)
            except FileNotFoundError:
                raise ending from None
            except StoreLocked as error:
                who = "another process" if error.pid is None else f"process {error.pid}"
                raise StoreLocked(
                    f"{destination}: {who} is writing there, in {place.name} beside it. Wait until it is done, or end it.",
                    error.pid,
                ) from error
            if not lock.is_in(place):
                lock.release()
                raise ending
            staging = cls(destination, place / secrets.token_hex(8), lock, files)
            try:
                for left in place.iterdir():
                    if re.fullmatch("[0-9a-f]{16}", left.name):
                        _delete(files, left)
                if publishes:
                    _check_free(destination)
                files.create_directory(Path(staging.path))
                files.create_directory(Path(staging.path, PARTS))
            except BaseException:
                staging.abandon()
                raise
            return staging

    def hand_over(self, pid: int) -> None:
        """Let the job continue without this process, until process ``pid`` ends or a process that joins it ends it.

        For jobs whose driver is not a Python process: Spark plans a write in one Python process and commits it in another. A
        process of its own keeps the lock meanwhile.
        """
        if self._lock is not None:
            fd = self._lock.hand_over(pid)
            command = [sys.executable, "-c", f"import {__name__} as it; it.keep({pid}, {self.path!r})"]
            null = subprocess.DEVNULL
            try:
                with errors(self.destination):
                    _keepers.append(
                        subprocess.Popen(
                            command, pass_fds=[fd], stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True
                        )
                    )
            finally:
                os.close(fd)
        self._open = False

    @contextmanager
    def publishing(self, check: Callable[[], object] | None = None) -> Iterator[Path]:
        """Yield the path of a directory for the block to create. Then sync it, and rename it to the destination. ``check`` is
        called last before the rename, and may raise.

        The job ends in any case. The result gets the permissions of an empty directory at the destination. Raises StoreError or
        StoreIOError; after an error of the last step, the sync of the name, the message says that everything is there.
        """
        if not self._open:
            raise StoreClosed(f"{self.path}: this job has ended")
        content = Path(self.path, "content")
        try:
            with errors(self.destination):
                yield content
                sync_tree(self._files, content)
                if check:
                    check()
                try:
                    if self.destination.is_dir():
                        self._files.copy_permissions(self.destination, content)
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

    def take(self, file: Path, size: int, to: Path) -> None:
        """Move a file that a task has written. Raises OSError, and StoreError if it does not have ``size`` bytes."""
        if not file.is_file() or file.stat().st_size != size:
            raise StoreError(
                f"{file}: was written with {size} bytes, and is not there, or not whole. Workers and driver must share the "
                f"file system in which {self.destination} is to be."
            )
        self._files.replace(file, to)

    def abandon(self) -> None:
        """End the job and delete the staging directory. Does nothing after the end. Running tasks fail at their next file."""
        if self._open:
            self._open = False
            path = Path(self.path)
            try:
                _delete(self._files, path)
                with suppress(OSError):
                    self._files.unlink(path.parent / LOCK)
                    path.parent.rmdir()
            finally:
                if self._lock is not None:
                    self._lock.release()

    def disown(self) -> None:
        """Leave the job and its lock to the parent process. Called in a forked child."""
        self._open = False
        if self._lock is not None:
            self._lock.disown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


def create_attempt(staging: str, task: int, files: Files | None = None) -> Path:
    """Create the directory of one attempt of a task, in any process. Raises OSError, and StoreIOError if the job has ended."""
    directory = Path(staging, PARTS, f"{task}-{secrets.token_hex(8)}")
    try:
        (files or Files()).create_directory(directory)
    except FileNotFoundError:
        raise StoreIOError(  # of which Spark's executors name their host
            f"{directory.parent}: there is no such directory: the job was ended or given up meanwhile, or this process does "
            f"not see the file system of the driver. Choose a destination that all of them see."
        ) from None
    return directory


def keep(pid: int, path: str) -> None:
    """Return when the process has ended or the directory does not exist any more. Runs in the process that keeps a lock."""
    with suppress(ProcessLookupError):
        # Linux only. It also detects the end of a process whose number is in use again, or that nobody awaits.
        process = [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []
        while Path(path).is_dir() and not select.select(process, [], [], _POLL_SECONDS)[0]:
            if not process:
                os.kill(pid, 0)


def _delete(files: Files, path: Path) -> None:
    """Rename a directory and delete it. The next job deletes what cannot be deleted now."""
    renamed = path.with_name(secrets.token_hex(8))
    with suppress(OSError):
        files.replace(path, renamed)
    for one in (renamed, path):
        with suppress(OSError):
            files.remove_tree(one)


@contextmanager
def errors(place: Path) -> Iterator[None]:
    """Convert errors of the operating system: add the path, ``place`` if they have none, and what became of the job. Those of
    plugins get the name of the plugin and ``place``."""
    try:
        yield
    except (OSError, StoreError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or isinstance(error, StoreLocked):
            raise
        # An outer block names the same. Errors of Arrow have neither.
        cause.filename, cause.strerror = _kept(cause.filename2 or cause.filename or place), cause.strerror or str(cause)
        about = "space, limits, permissions, the disk"
        if cause.errno == errno.EACCES:
            about = "permissions; if executors are another user, umask 0 where the job is started"
        raise StoreIOError(
            f"{cause.filename}: {cause.strerror}. Nothing was kept; mend the cause ({about}) and run the job again."
        ) from cause
    except Exception as error:
        if (broken := blame(error)) is not None:
            raise BrokenPlugin(f"{place}: {broken}") from error
        raise


def _kept(path: str | Path) -> Path:
    """Return the destination for what is in its staging directory, which is deleted when somebody reads the error."""
    for place in (Path(path), *Path(path).parents):
        if found := re.fullmatch(r"\.(.+)\.msgstore", place.name):
            return place.with_name(found[1])
    return Path(path)


def check_destination(destination: Path, sources: Iterable[str | Path] = ()) -> None:
    """Raise StoreError if a job that reads ``sources`` cannot create ``destination``."""
    _check_place(destination, sources)
    _check_free(destination)


def _check_place(destination: Path, sources: Iterable[str | Path]) -> None:
    for source in sources:
        if destination.resolve().is_relative_to(Path(source).resolve()):
            raise StoreError(f"{destination}: lies inside {source}, into which nothing is written; choose another place")
    if not destination.parent.is_dir():
        raise StoreError(f"{destination.parent}: there is no such directory; make it, or choose another place")


def is_occupied(destination: Path) -> bool:
    """Return True if there is something at a path, and not only an empty directory."""
    return destination.is_symlink() or (destination.exists() and not (destination.is_dir() and not any(destination.iterdir())))


def _check_free(destination: Path) -> None:
    if is_occupied(destination):
        what = "and is not an empty directory" if destination.is_dir() else "as a file"
        raise StoreError(f"{destination}: is there already, {what}; choose a new name")
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
