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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgstore.contract import StoreError, StoreIOError, StoreLocked
from msgstore.files import Files
from msgstore.writer_lock import WriterLock

log = logging.getLogger("msgstore.bulk")

_ATTEMPTS = 5


@contextmanager
def working_directory(files: Files, destination: Path) -> Iterator[Path]:
    """A new directory beside ``destination`` that is gone in the end; what killed jobs left there is cleared away first.

    Raises OSError, StoreLocked.
    """
    remove_stale(files, destination)
    path, lock = create_locked(files, destination)
    try:
        yield path
    finally:
        clear(files, path)
        lock.release()


def sync_name(files: Files, destination: Path) -> None:
    """The very last step of a job. Raises StoreIOError, which says that everything is there all the same."""
    try:
        files.sync_directory(destination.parent)
    except OSError as error:
        raise StoreIOError(
            f"{destination.parent}: {error.strerror or error}. Everything is at {destination}, and whole; whether its name "
            "outlasts a power loss is not known."
        ) from error


def publish(files: Files, directory: Path, destination: Path) -> None:
    """Rename a finished directory to its final name, and keep the permissions of an empty directory there. Raises OSError."""
    if destination.is_dir():
        files.copy_permissions(destination, directory)
        if os.name == "nt":
            destination.rmdir()  # elsewhere a directory may take an empty one's place
    files.replace(directory, destination)


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
