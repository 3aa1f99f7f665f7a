"""What the tests that cross distributions share: cells, real directories, and a file layer that stops or counts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.config import store_config
from msgstore.engine.opening import open_configured
from msgstore.files import Files

DATA = Path(__file__).parent / "data"
DIRECTORIES = ["mixed_upgrade", "v1_clean", "v1_compacted", "v2_clean", "v2_compacted", "v2_dirty", "v2_dirty_torn"]


@attrs.frozen
class Cell:
    index: str
    format: str
    record: str = "message"

    @property
    def keys(self) -> dict[str, Any]:
        """Keywords of ``open_store``."""
        return {"index": self.index, "format": self.format, "record": self.record}

    def __str__(self) -> str:
        return f"{self.index}-{self.format}" + ("" if self.record == "message" else f"-{self.record}")


CELLS = {
    str(cell): cell
    for cell in [Cell(i, f, r) for i in ("ets", "lmdb") for f, r in (("v1", "message"), ("v2", "message"), ("v2", "checksum"))]
}


def open_with(
    path: Path,
    files: Files | None = None,
    *,
    mode: Any = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    **keys: Any,
) -> msgstore.Store:
    """``open_store`` with a file layer of the test's own, and no collector in the background unless asked for."""
    config = store_config({"path": path, "gc_interval": 0, **keys}, "test", Path())
    return open_configured(config, catalogue(), mode=mode, refcounts=refcounts, files=files)


@contextlib.contextmanager
def opening(path: Path, cell: Cell, **usual: Any) -> Iterator[Callable[..., msgstore.Store]]:
    """``open_it(files=None, **keys)`` opens the store of ``path``, again and again; at the end all are abandoned."""
    stores: list[msgstore.Store] = []

    def open_it(files: Files | None = None, **keys: Any) -> msgstore.Store:
        stores.append(open_with(path, files, **cell.keys, **usual | keys))
        return stores[-1]

    yield open_it
    for store in stores:
        store.abandon()


@functools.cache
def catalogue() -> msgstore.Catalogue:
    return msgstore.load_catalogue()


@attrs.frozen
class RealDirectory:
    """A directory that a broker wrote, with the truth about it."""

    name: str
    manifest: dict[str, Any]

    @classmethod
    def load(cls, name: str) -> RealDirectory:
        return cls(name, json.loads((DATA / "msg-store" / name / "manifest.json").read_text()))

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(DATA / "msg-store" / self.name / "store", to / "store"))

    @property
    def torn_id(self) -> bytes | None:
        return bytes.fromhex(self.manifest["torn"]["id"]) if "torn" in self.manifest else None

    @property
    def refcounts(self) -> dict[bytes, int]:
        return {bytes.fromhex(m["id"]): m["refcount"] for m in self.manifest["messages"] if m["refcount"]}

    @property
    def live(self) -> dict[bytes, str]:
        """Id to SHA-256 of the stored body of every live, confirmed message; less the one that was torn on purpose."""
        return {
            bytes.fromhex(m["id"]): m["body_sha256"]
            for m in self.manifest["messages"]
            if m["refcount"] and m["confirmed"] and bytes.fromhex(m["id"]) != self.torn_id
        }


def hashes(store: msgstore.Store) -> dict[bytes, str]:
    """Id to SHA-256 of the stored body, of every message on disk."""
    return {entry.msg_id: hashlib.sha256(store.stored_body(entry)).hexdigest() for entry in store.entries()}


class UnsyncedFiles(Files):
    """Does not wait for the disk: for tests of what is done, not of when it is durable."""

    def sync(self, fd):
        pass

    def sync_directory(self, path):
        pass


class Crash(BaseException):
    """The process ended here. Not an Exception: nothing may handle it."""


class RecordingFiles(Files):
    """Counts: every operation as (name, path or None, bytes)."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, str, int]] = []
        self._paths: dict[int, str] = {}
        self.pread = self._pread  # type: ignore[method-assign]

    def count(self, *names: str) -> int:
        return sum(1 for name, _, _ in self.operations if name in names)

    def _note(self, name: str, path: object, size: int = 0) -> None:
        self.operations.append((name, str(path), size))

    def open_read(self, path):
        self._note("open_read", path)
        return self._opened(super().open_read(path), path)

    def open_write(self, path):
        self._note("open_write", path)
        return self._opened(super().open_write(path), path)

    def create(self, path):
        self._note("create", path)
        return self._opened(super().create(path), path)

    def _opened(self, fd: int, path: Path) -> int:
        self._paths[fd] = path.name
        return fd

    def _pread(self, fd, size, offset):
        self._note("pread", self._paths.get(fd), size)
        return Files.pread(fd, size, offset)

    def pwrite(self, fd, data, offset):
        self._note("pwrite", self._paths.get(fd), len(data))
        super().pwrite(fd, data, offset)

    def sync(self, fd):
        self._note("sync", self._paths.get(fd))
        super().sync(fd)

    def sync_directory(self, path):
        self._note("sync_directory", path)
        super().sync_directory(path)

    def truncate(self, fd, size):
        self._note("truncate", self._paths.get(fd), size)
        super().truncate(fd, size)

    def set_mtime(self, path, mtime_ns):
        self._note("set_mtime", path)
        return super().set_mtime(path, mtime_ns)

    def unlink(self, path):
        self._note("unlink", path)
        super().unlink(path)

    def replace(self, source, target):
        self._note("replace", target)
        super().replace(source, target)

    def read_file(self, path):
        self._note("read_file", path)
        return super().read_file(path)


CHANGES = ("create", "pwrite", "sync", "sync_directory", "truncate", "unlink", "replace", "set_mtime")
SECTOR = 512


class StoppingFiles(RecordingFiles):
    """Ends the process at the ``stop``-th change, before it; for a write, after its first ``torn`` bytes if that is given.

    Once stopped, every change raises: no clean-up runs in a process that is gone.
    """

    def __init__(self, stop: int, torn: int = 0) -> None:
        super().__init__()
        self._left = stop
        self._torn = torn
        self.stopped = False

    def _note(self, name: str, path: object, size: int = 0) -> None:
        super()._note(name, path, size)
        if name in CHANGES:
            if self._left == 0:
                self.stopped = True
                raise Crash
            self._left -= 1

    def pwrite(self, fd, data, offset):
        if self._left == 0 and not self.stopped and self._torn:
            Files.pwrite(self, fd, memoryview(data)[: self._torn], offset)
        super().pwrite(fd, data, offset)
