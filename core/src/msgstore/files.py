"""Every file operation of core, in one small class: the place where tests count operations and inject faults.

Methods raise OSError as the operating system does; who calls them adds store, file and offset.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

UNFINISHED = ".tmp"
"""Suffix of a file that is still being written. No opening reads it."""

READ_WHOLE = 64 * 2**20
"""Files up to this size are read into memory; larger ones are mapped. A mapped file that another process shortens kills the
process that reads past its new end, so only files that hold one huge record, which nobody compacts, are mapped."""


class Files:
    """File operations by the real file system. Stateless; one object may serve many stores."""

    def open_read(self, path: Path) -> int:
        """Of a plain file. OSError for anything else: a pipe is not waited for."""
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        return _plain(os.open(path, flags), path)

    def open_write(self, path: Path) -> int:
        """Of a plain file that exists, for reading and writing. OSError for a symbolic link: what it leads to is not ours."""
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        return _plain(os.open(path, flags | getattr(os, "O_NOFOLLOW", 0)), path)

    def create(self, path: Path) -> int:
        """A new, empty file for reading and writing; FileExistsError if the name is taken."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    if hasattr(os, "pread"):
        pread = staticmethod(os.pread)  # a bare built-in: one call less for each read

        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            """All of ``data`` at ``offset``; a short write is continued."""
            written = os.pwrite(fd, data, offset)
            if written < len(data):
                view = memoryview(data)
                while view := view[written:]:
                    offset += written
                    written = os.pwrite(fd, view, offset)

    else:  # Windows: the store's lock keeps seek and transfer together

        @staticmethod
        def pread(fd: int, size: int, offset: int, /) -> bytes:  # type: ignore[misc]
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, size)

        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            view = memoryview(data)
            os.lseek(fd, offset, os.SEEK_SET)
            while view:
                view = view[os.write(fd, view) :]

    def overwrite(self, fd: int, data: bytes) -> None:
        """``data`` as the whole content of a small file, in one write; what stood behind it is cut off."""
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, data)
        os.ftruncate(fd, len(data))

    def map(self, fd: int, size: int) -> mmap.mmap:
        """The first ``size`` bytes of a file, read-only. ValueError if there are not so many, or none."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_directory(self, path: Path) -> None:
        """Make names durable; nothing to do where directories cannot be opened."""
        if os.name == "posix":
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size_and_mtime(self, fd: int) -> tuple[int, int]:
        """(bytes, modification time in nanoseconds)."""
        status = os.fstat(fd)
        return status.st_size, status.st_mtime_ns

    def identity(self, file: Path | int) -> tuple[int, int]:
        """(device, inode) of what has this path or descriptor: no two files or directories that exist share it."""
        return self.identity_and_links(file)[0]

    def identity_and_links(self, file: Path | int) -> tuple[tuple[int, int], int]:
        """As ``identity``, and the number of names that it has."""
        status = os.stat(file)  # noqa: PTH116 - of a descriptor, too
        return (status.st_dev, status.st_ino), status.st_nlink

    def is_deleted(self, fd: int) -> bool:
        """Whether the file has no name any more, and its space comes back only when its last descriptor is closed."""
        return os.fstat(fd).st_nlink == 0

    def set_mtime(self, path: Path, mtime_ns: int) -> tuple[int, int]:
        """Set a file's modification time. Returns (bytes, modification time) as the file system keeps them."""
        os.utime(path, ns=(path.stat().st_atime_ns, mtime_ns))
        status = path.stat()
        return status.st_size, status.st_mtime_ns

    def list(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Name to (bytes, modification time in nanoseconds) of every plain file; one that goes meanwhile is not there."""
        found = {}
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        status = entry.stat()
                        found[entry.name] = (status.st_size, status.st_mtime_ns)
        return found

    def entries(self, directory: Path) -> tuple[dict[str, tuple[int, int]], dict[str, OSError]]:
        """As :meth:`list`, but what is wrong with one name concerns this name only: (plain files, name to error of all else).

        All else are directories (EISDIR), pipes and the like, links to nothing, and what cannot be looked at. OSError if no
        name can be, as the directory may not be listed or searched.
        """
        check_listable(directory)
        found, refused = {}, {}
        for path in directory.iterdir():
            try:
                found[path.name] = look(path)
            except OSError as error:
                if not is_gone(path, error):
                    refused[path.name] = error
        return found, refused

    def strangers(self, directory: Path) -> dict[str, str]:
        """Name to what it is, of everything in a directory that is not a plain file of its own."""
        with os.scandir(directory) as entries:
            kinds = {entry.name: _kind(entry) for entry in entries}
        return {name: kind for name, kind in kinds.items() if kind}

    def make_directory(self, path: Path) -> None:
        """With the parents that are missing. Each new name is durable when this returns; if that fails, none is left."""
        made: list[Path] = []
        try:
            for missing in reversed(_missing(path)):
                missing.mkdir(exist_ok=True)
                made.append(missing)
                self.sync_directory(missing.parent)
        except OSError:
            for new in reversed(made):
                with contextlib.suppress(OSError):  # somebody else has put something there
                    new.rmdir()
            raise
        path.mkdir(exist_ok=True)  # FileExistsError for what is no directory

    def create_directory(self, path: Path) -> None:
        """FileExistsError if the name is taken, FileNotFoundError if its parent is not there."""
        path.mkdir()

    def copy_permissions(self, source: Path, target: Path) -> None:
        """The mode of a directory for another one, and its owner and group, if this process may give directories away."""
        status = source.stat()
        if os.name == "posix":
            with contextlib.suppress(PermissionError):
                os.chown(target, status.st_uid, status.st_gid)
        target.chmod(stat.S_IMODE(status.st_mode))

    def remove_tree(self, path: Path) -> None:
        """A directory and all that is in it, as far as that can be deleted. Links are not followed."""
        shutil.rmtree(path, ignore_errors=True)

    def unlink(self, path: Path) -> None:
        """No error if there is no such file."""
        path.unlink(missing_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        """In one step. A directory takes the place of an empty one only; OSError if there is anything else."""
        source.replace(target)

    def read_file(self, path: Path) -> bytes:
        fd = self.open_read(path)
        try:
            return self._read_all(fd, os.fstat(fd).st_size)
        finally:
            self.close(fd)

    def write_file(self, path: Path, chunks: Iterable[bytes], *, sync: bool) -> None:
        """Atomically: under a temporary name, synced if asked, then renamed. The temporary file goes if anything fails."""
        temporary = path.with_name(path.name + UNFINISHED)
        self.unlink(temporary)
        fd = self.create(temporary)
        try:
            try:
                offset = 0
                for chunk in chunks:
                    self.pwrite(fd, chunk, offset)
                    offset += len(chunk)
                if sync:
                    self.sync(fd)
            finally:
                self.close(fd)
            self.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if sync:
            self.sync_directory(path.parent)

    @contextlib.contextmanager
    def view(self, path: Path) -> Iterator[bytes | mmap.mmap]:
        """The whole file, to scan it."""
        fd = self.open_read(path)
        try:
            size = os.fstat(fd).st_size
            if size <= READ_WHOLE:
                yield self._read_all(fd, size)
            else:
                with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as mapped:
                    yield mapped
        finally:
            self.close(fd)

    def _read_all(self, fd: int, size: int) -> bytes:
        parts, offset = [], 0
        while offset < size and (part := self.pread(fd, size - offset, offset)):
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _missing(path: Path) -> list[Path]:
    """``path`` and those above it that do not exist, the lowest first."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    return missing


def look(path: Path) -> tuple[int, int]:
    """(bytes, modification time in nanoseconds) of a plain file. OSError for anything else."""
    status = path.stat()
    _check_plain(status.st_mode, path)
    return status.st_size, status.st_mtime_ns


def is_gone(path: Path, error: OSError) -> bool:
    """Whether ``error`` says no more than that there is no such name any more. A link to nothing is there."""
    return isinstance(error, FileNotFoundError) and not path.is_symlink()


def check_listable(directory: Path) -> None:
    """OSError if the names in a directory cannot be read, or nothing can be found out about any of them."""
    os.scandir(directory).close()
    check_searchable(directory)


def check_searchable(directory: Path) -> None:
    """OSError if nothing can be found out about any name in a directory."""
    os.stat(os.path.join(directory, "."))  # noqa: PTH116, PTH118 - a Path forgets the dot, for which the directory is searched


def _plain(fd: int, path: Path) -> int:
    try:
        _check_plain(os.fstat(fd).st_mode, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_plain(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "is a directory" if stat.S_ISDIR(mode) else "is not a plain file", str(path))


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a symbolic link"
    return "" if entry.is_file() else "a directory" if entry.is_dir() else "a pipe, a socket or a device"
