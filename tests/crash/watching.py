"""A file layer that tells of every operation of :class:`msgstore.files.Files`, before and after it happens.

Nothing here waits for the disk: ``sync`` is told of, and that is all. What a sync is worth is decided by ``states``.
"""

from __future__ import annotations

import threading
from pathlib import Path

from msgstore.files import Files

CHANGES = ("create", "pwrite", "truncate", "unlink", "replace", "sync", "sync_directory", "make_directory", "set_mtime")
"""Operations that change something, or decide what survives a power loss."""
LOOKS = (
    "open_read", "open_write", "close", "pread", "map", "size_and_mtime", "is_deleted", "identity_and_links", "list", "non_regular_files",
    "read_file", "set_mtime",
)  # fmt: skip
COMPOSED = ("write_file", "view", "identity")
"""Made of the others; each part is told of by itself."""
LOCKS = ("overwrite",)
"""Operations on the lock file. No opening trusts its text, so they are no crash points. tests/test_opening_faults.py makes
them fail."""
JOBS = ("create_directory", "copy_permissions", "remove_tree", "entries")
"""Of jobs that read any directory and write a new store: tests/test_fresh_stores.py stops those that write. An engine that
calls one is refused: to open a store, what cannot be looked at in its directory is an error."""


class WatchedFiles(Files):
    """``before`` may raise, as the operating system would: then the operation has not happened."""

    def __init__(self) -> None:
        self.names: dict[int, Path] = {}
        """Of every descriptor that is open."""
        self.busy = threading.RLock()
        self.pread = self._pread  # type: ignore[method-assign]

    def before(self, kind: str, path: Path, *, fd: int = -1, offset: int = 0, data: bytes = b"", target: Path | None = None):
        """Called with the lock; ``offset`` is the new size for ``truncate``, the new time for ``set_mtime``."""

    def after(self, kind: str, path: Path, *, fd: int = -1) -> None:
        """Called with the lock, if the operation succeeded."""

    def _open(self, kind: str, path: Path, opening) -> int:
        with self.busy:
            self.before(kind, path)
            fd = opening(path)
            self.names[fd] = path
            self.after(kind, path, fd=fd)
            return fd

    def open_read(self, path):
        return self._open("open_read", path, super().open_read)

    def open_write(self, path):
        return self._open("open_write", path, super().open_write)

    def create(self, path):
        return self._open("create", path, super().create)

    def close(self, fd):
        """A close that fails has closed the descriptor all the same."""
        with self.busy:
            path = self.names.pop(fd)
            try:
                self.before("close", path)
            finally:
                super().close(fd)

    def _pread(self, fd, size, offset):
        with self.busy:
            self.before("pread", self.names[fd], fd=fd, offset=offset)
            return Files.pread(fd, size, offset)

    def pwrite(self, fd, data, offset):
        with self.busy:
            self.before("pwrite", self.names[fd], fd=fd, offset=offset, data=bytes(data))
            super().pwrite(fd, data, offset)
            self.after("pwrite", self.names[fd], fd=fd)

    def map(self, fd, size):
        with self.busy:
            self.before("map", self.names[fd], fd=fd)
            return super().map(fd, size)

    def sync(self, fd):
        with self.busy:
            self.before("sync", self.names[fd], fd=fd)

    def sync_directory(self, path):
        with self.busy:
            self.before("sync_directory", path)

    def truncate(self, fd, size):
        with self.busy:
            self.before("truncate", self.names[fd], fd=fd, offset=size)
            super().truncate(fd, size)
            self.after("truncate", self.names[fd], fd=fd)

    def size_and_mtime(self, fd):
        with self.busy:
            self.before("size_and_mtime", self.names[fd], fd=fd)
            return super().size_and_mtime(fd)

    def is_deleted(self, fd):
        with self.busy:
            self.before("is_deleted", self.names[fd], fd=fd)
            return super().is_deleted(fd)

    def identity_and_links(self, file):
        with self.busy:
            path, fd = (file, -1) if isinstance(file, Path) else (self.names[file], file)
            self.before("identity_and_links", path, fd=fd)
            return super().identity_and_links(file)

    def list(self, directory):
        with self.busy:
            self.before("list", directory)
            return super().list(directory)

    def non_regular_files(self, directory):
        with self.busy:
            self.before("non_regular_files", directory)
            return super().non_regular_files(directory)

    def set_mtime(self, path, mtime_ns):
        with self.busy:
            self.before("set_mtime", path, offset=mtime_ns)
            return super().set_mtime(path, mtime_ns)

    def make_directory(self, path):
        with self.busy:
            self.before("make_directory", path)
            super().make_directory(path)

    def create_directory(self, path):
        raise NotImplementedError(f"nobody would stop inside create_directory({path})")

    def copy_permissions(self, source, target):
        raise NotImplementedError(f"nobody would stop inside copy_permissions({source}, {target})")

    def remove_tree(self, path):
        raise NotImplementedError(f"nobody would stop inside remove_tree({path})")

    def entries(self, directory):
        raise NotImplementedError(f"nobody would stop inside entries({directory})")

    def unlink(self, path):
        with self.busy:
            self.before("unlink", path)
            super().unlink(path)

    def replace(self, source, target):
        with self.busy:
            self.before("replace", source, target=target)
            super().replace(source, target)

    def read_file(self, path):
        with self.busy:
            self.before("read_file", path)
            return super().read_file(path)
