"""File operations of core, in one class, for POSIX systems. Tests count operations and inject faults here.

Methods raise the OSError of the operating system. Callers add store, file and offset.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

UNFINISHED = ".tmp"
"""Suffix of a file that is still being written. No opening reads it."""

READ_WHOLE = 64 * 2**20
"""Files up to this size, in bytes, are read into memory; larger ones are mapped. If another process truncates a mapped file, a
read past the new end kills this process. Therefore larger segments are compacted by copying, never in place."""


class SegmentMap(mmap.mmap):
    """Mapped file that says which of its parts are stored. The descriptor ``fd`` is open as long as the map."""

    fd: int

    def stored_parts(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each part from ``start`` on that the file system has stored. Between them are zeros.

        Yields the whole rest where the operating system does not tell.
        """
        while start < len(self):
            begin, end = next_data(self.fd, start), len(self)
            with contextlib.suppress(OSError, AttributeError):
                end = min(os.lseek(self.fd, begin, os.SEEK_HOLE), end)
            if begin < end:
                yield begin, end
            start = max(end, begin)


def next_data(fd: int, offset: int) -> int:
    """Return the first stored offset from ``offset`` on; a huge one if none is, ``offset`` if the system does not tell."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except (OSError, AttributeError) as error:
        return sys.maxsize if isinstance(error, OSError) and error.errno == errno.ENXIO else offset


class Files:
    """File operations on the real file system. Stateless; one object may serve many stores."""

    def open_read(self, path: Path) -> int:
        """Open a regular file for reading. Raises OSError for anything else, and never blocks on a pipe."""
        return _require_regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK), path)

    def open_write(self, path: Path) -> int:
        """Open an existing regular file for reading and writing. Raises OSError for a symbolic link: its target may belong to
        others."""
        return _require_regular(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW), path)

    def create(self, path: Path) -> int:
        """Create an empty file and open it for reading and writing. Raises FileExistsError if the name is taken."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    pread = staticmethod(os.pread)  # the built-in itself saves one call per read

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``. Continues after a short write."""
        written = os.pwrite(fd, data, offset)
        if written < len(data):
            view = memoryview(data)
            while view := view[written:]:
                offset += written
                written = os.pwrite(fd, view, offset)

    def overwrite(self, fd: int, data: bytes) -> None:
        """Replace the whole content of a small file in one write, and truncate the rest."""
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, data)
        os.ftruncate(fd, len(data))

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the first ``size`` bytes of a file read-only. Raises ValueError if the file is shorter, or ``size`` is 0."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Let a file have ``size`` bytes, at least as many as now. New ones are zeros, and have their place on the disk, where
        the system can do that."""
        try:
            os.posix_fallocate(fd, 0, size)
        except (AttributeError, OSError) as error:  # not on macOS, nor in every file system
            if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            os.ftruncate(fd, size)

    def size_and_mtime(self, fd: int) -> tuple[int, int]:
        """Return (bytes, modification time in nanoseconds)."""
        status = os.fstat(fd)
        return status.st_size, status.st_mtime_ns

    def identity(self, file: Path | int) -> tuple[int, int]:
        """Return (device, inode) of a path or descriptor. No two existing files or directories share it."""
        return self.identity_and_links(file)[0]

    def identity_and_links(self, file: Path | int) -> tuple[tuple[int, int], int]:
        """Return the result of ``identity``, and the number of hard links."""
        status = os.stat(file)  # noqa: PTH116 - also for descriptors
        return (status.st_dev, status.st_ino), status.st_nlink

    def next_stored(self, fd: int, offset: int) -> int:
        """Return the first offset from ``offset`` on at which the file system has something stored; else the file's size."""
        return min(next_data(fd, offset), os.fstat(fd).st_size)

    def is_deleted(self, fd: int) -> bool:
        """Return True if the file has no name any more. Its space is freed when the last descriptor is closed."""
        return os.fstat(fd).st_nlink == 0

    def set_mtime(self, path: Path, mtime_ns: int) -> tuple[int, int]:
        """Set the modification time of a file. Returns (bytes, modification time) as the file system stores them."""
        os.utime(path, ns=(path.stat().st_atime_ns, mtime_ns))
        status = path.stat()
        return status.st_size, status.st_mtime_ns

    def list(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Return name to (bytes, modification time in nanoseconds) of every regular file. Omits files that are deleted
        meanwhile, and links to nothing or to themselves."""
        found = {}
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.is_file():
                        status = entry.stat()
                        found[entry.name] = (status.st_size, status.st_mtime_ns)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ELOOP):
                        raise
        return found

    def entries(self, directory: Path) -> tuple[dict[str, tuple[int, int]], dict[str, OSError]]:
        """Return (regular files, name to error of everything else). Unlike :meth:`list`, an error of one name affects only that
        name.

        Everything else: directories (EISDIR), pipes and the like, dangling links, and names without permission. Raises OSError
        if the directory cannot be listed or searched.
        """
        check_listable(directory)
        found, refused = {}, {}
        for path in directory.iterdir():
            try:
                found[path.name] = stat_regular_file(path)
            except OSError as error:
                if not is_gone(path, error):
                    refused[path.name] = error
        return found, refused

    def non_regular_files(self, directory: Path) -> dict[str, str]:
        """Return name to kind, such as ``a symbolic link``, of everything in a directory that is not a regular file."""
        with os.scandir(directory) as entries:
            kinds = {entry.name: _kind(entry) for entry in entries}
        return {name: kind for name, kind in kinds.items() if kind}

    def make_directory(self, path: Path) -> None:
        """Create a directory with its missing parents. Each new name is durable on return; on an error, all new ones are
        removed."""
        new = list(itertools.takewhile(lambda directory: not directory.exists(), (path, *path.parents)))
        path.mkdir(parents=True, exist_ok=True)  # FileExistsError if it is not a directory
        try:
            for directory in reversed(new):
                self.sync_directory(directory.parent)
        except OSError:
            for directory in new:
                with contextlib.suppress(OSError):  # another process has created a file in it
                    directory.rmdir()
            raise

    def create_directory(self, path: Path) -> None:
        """Create a directory. Raises FileExistsError if the name is taken, FileNotFoundError if its parent is missing."""
        path.mkdir()

    def copy_permissions(self, source: Path, target: Path) -> None:
        """Copy the mode of a directory to another, and its owner and group if this process has the permission."""
        status = source.stat()
        with contextlib.suppress(PermissionError):
            os.chown(target, status.st_uid, status.st_gid)
        target.chmod(stat.S_IMODE(status.st_mode))

    def remove_tree(self, path: Path) -> None:
        """Delete a directory and its content, as far as possible. Links are not followed."""
        shutil.rmtree(path, ignore_errors=True)

    def unlink(self, path: Path) -> None:
        """Delete a file. A missing file is no error."""
        path.unlink(missing_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        """Rename ``source`` to ``target`` in one step. A directory replaces only an empty directory; otherwise raises
        OSError."""
        source.replace(target)

    @contextlib.contextmanager
    def closing(self, fd: int) -> Iterator[int]:
        """Close a descriptor at the end of the block."""
        try:
            yield fd
        finally:
            self.close(fd)

    def read_file(self, path: Path) -> bytes:
        """Return the content of a regular file. Raises OSError for anything else."""
        with self.closing(self.open_read(path)) as fd:
            return self._read_all(fd, os.fstat(fd).st_size)

    def write_file(self, path: Path, chunks: Iterable[bytes], *, sync: bool) -> None:
        """Write a file atomically: write a temporary name, sync it if asked, and rename it. On an error the temporary file is
        deleted."""
        temporary = path.with_name(path.name + UNFINISHED)
        self.unlink(temporary)
        fd = self.create(temporary)
        try:
            with self.closing(fd):
                offset = 0
                for chunk in chunks:
                    self.pwrite(fd, chunk, offset)
                    offset += len(chunk)
                if sync:
                    self.sync(fd)
            self.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if sync:
            self.sync_directory(path.parent)

    def map_file(self, path: Path) -> mmap.mmap:
        """Map a whole regular file read-only. The map keeps one descriptor. Raises OSError, which names the file."""
        with self.closing(self.open_read(path)) as fd:
            try:
                return self.map(fd, os.fstat(fd).st_size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error

    @contextlib.contextmanager
    def view(self, path: Path) -> Iterator[bytes | mmap.mmap]:
        """Yield the content of the whole file for a scan."""
        with self.closing(self.open_read(path)) as fd:
            size = os.fstat(fd).st_size
            if size <= READ_WHOLE:
                yield self._read_all(fd, size)
            else:
                with SegmentMap(fd, size, access=mmap.ACCESS_READ) as mapped:
                    mapped.fd = fd
                    yield mapped

    def _read_all(self, fd: int, size: int) -> bytes:
        parts, offset = [], 0
        while offset < size and (part := self.pread(fd, size - offset, offset)):
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def stat_regular_file(path: Path) -> tuple[int, int]:
    """Return (bytes, modification time in nanoseconds) of a regular file. Raises OSError for anything else."""
    status = path.stat()
    _check_regular(status.st_mode, path)
    return status.st_size, status.st_mtime_ns


def is_gone(path: Path, error: OSError) -> bool:
    """Return True if ``error`` only says that the name no longer exists. A dangling link still exists."""
    return isinstance(error, FileNotFoundError) and not path.is_symlink()


def check_listable(directory: Path) -> None:
    """Raise OSError if the names in a directory cannot be read, or no name in it can be examined."""
    os.scandir(directory).close()
    check_searchable(directory)


def check_searchable(directory: Path) -> None:
    """Raise OSError if no name in a directory can be examined."""
    os.stat(os.path.join(directory, "."))  # noqa: PTH116, PTH118 - a Path drops the dot, which forces a search of the directory


def _require_regular(fd: int, path: Path) -> int:
    """Return ``fd`` if it is a regular file; otherwise close it and raise OSError."""
    try:
        _check_regular(os.fstat(fd).st_mode, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "is a directory" if stat.S_ISDIR(mode) else "is not a regular file", str(path))


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a symbolic link"
    return "" if entry.is_file() else "a directory" if entry.is_dir() else "a pipe, a socket or a device"
