"""The vhosts of a directory, without opening them: find, stop, start, delete.

A vhost is *open* while a process has it: no command serves one. A *stopped* one is not opened by anybody until it is started: a
marker file in its directory says so. A process that has it open goes on; it cannot open it again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import attrs

from msgstore.contract import StoreError, StoreLocked
from msgstore.files import Files
from msgstore.option_values import nearest
from msgstore.writer_lock import WriterLock, check_no_writer
from msgstore_queues import directories
from msgstore_queues.directories import QUEUES, STOPPED_FILE, VHOST_FILE, Remembered
from msgstore_queues.options import SUFFIX


@attrs.frozen
class FoundVHost:
    """A vhost as its directory shows it."""

    name: str
    directory: Path
    is_open: bool
    """True while a process has it open."""
    pid: int | None
    """That process, if the lock file names it."""
    is_stopped: bool
    is_clean: bool
    """False: the last process has not closed it, so the next opening reads all queues."""

    @property
    def state(self) -> str:
        """``open``, ``stopped``, ``closed``, or ``crashed``."""
        if self.is_open:
            return "open"
        return "stopped" if self.is_stopped else "closed" if self.is_clean else "crashed"


def find_vhosts(path: Path, add: str = "") -> list[FoundVHost]:
    """Return the vhosts of a directory by name. Raises StoreError if there is no such directory. ``add``: the arguments of the
    command that makes it."""
    if not path.is_dir():
        raise StoreError(f"{path}: there is no such directory. Make a vhost in it: msgstore vhost add {add or path}")
    top = path / "msg_stores" / "vhosts"
    found = [_look_at(one) for one in sorted(top.iterdir())] if top.is_dir() else []
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


def find_vhost(path: Path, name: str, add: str = "") -> FoundVHost:
    """Return one vhost. Raises StoreError if it is not there. ``add``: as for :func:`find_vhosts`."""
    found = {one.name: one for one in find_vhosts(path, add)}
    if name not in found:
        known = ", ".join(map(repr, found)) or "none"
        hint = nearest(name, found) or f". Make it: msgstore vhost add {add or f'{path} {name}'}"
        raise StoreError(f"{path}: there is no vhost {name!r}. Vhosts: {known}{hint}")
    return found[name]


def _look_at(directory: Path) -> FoundVHost | None:
    try:
        name = (directory / ".vhost").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    is_open, pid = False, None
    try:
        check_no_writer(directory)
    except StoreLocked as error:
        is_open, pid = True, error.pid
    is_clean = (directory / VHOST_FILE).exists() or not has_queues(directory)
    return FoundVHost(name, directory, is_open, pid, (directory / STOPPED_FILE).exists(), is_clean)


def has_queues(directory: Path) -> bool:
    """Return True if the directory of a vhost has the directory of a queue."""
    return (directory / QUEUES).is_dir() and any((directory / QUEUES).iterdir())


def stop_vhost(vhost: FoundVHost, files: Files | None = None) -> None:
    """Let nobody open a vhost until it is started. A process that has it open goes on."""
    (files or Files()).write_file(vhost.directory / STOPPED_FILE, [b""], sync=True)


def start_vhost(vhost: FoundVHost, files: Files | None = None) -> None:
    """Let a vhost be opened again."""
    files = files or Files()
    files.unlink(vhost.directory / STOPPED_FILE)
    files.sync_directory(vhost.directory)


def delete_vhost(vhost: FoundVHost, files: Files | None = None) -> None:
    """Stop a vhost, and delete it with all its messages. Raises StoreLocked while a process has it open.

    A crash in between leaves a stopped vhost, or an empty one: delete it again.
    """
    files = files or Files()
    lock = WriterLock(vhost.directory, files)
    try:
        stop_vhost(vhost, files)
        last = [STOPPED_FILE, ".vhost"]
        for path in sorted(vhost.directory.iterdir()):
            if path.is_dir() and not path.is_symlink():
                files.remove_tree(path)
            elif path.name not in last:
                files.unlink(path)
        for name in last:
            files.unlink(vhost.directory / name)
        files.remove_tree(vhost.directory)
    finally:
        with suppress(OSError):  # the directory is gone
            lock.release()


def remembered_queues(vhost: FoundVHost, files: Files | None = None) -> list[Remembered]:
    """Return what the directories of the queues say of them, by name. Raises StoreError."""
    files, top = files or Files(), vhost.directory / QUEUES
    whole, parts = dict[str, Remembered](), dict[str, Remembered]()
    for path in sorted(top.iterdir()) if top.is_dir() else ():
        with suppress(FileNotFoundError):  # deleted meanwhile
            if (queue := directories.read_queue_directory(files, path)) is not None:
                (whole if queue.level is None else parts)[queue.name] = queue
    return [queue for _, queue in sorted({**parts, **whole}.items())]


def queue_names(vhost: FoundVHost) -> list[str]:
    """Return the names of the queues, without those that hold the delayed messages of another. Raises StoreError."""
    names = {queue.name for queue in remembered_queues(vhost)}
    return sorted(name for name in names if name.removesuffix(SUFFIX) not in names - {name})
