"""A file layer that reports every operation of :class:`msgstore.files.Files`, before and after it happens.

It does not wait for the disk: ``sync`` and ``sync_directory`` are reported, and nothing else is done. ``states`` decides what
they save. The harnesses ``crash`` and ``faults`` use this layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgstore.files import Files

CHANGES = ("create", "pwrite", "truncate", "unlink", "replace", "sync", "sync_directory", "make_directory", "set_mtime")
"""Operations that change something, or decide what survives a power loss."""
LOOKS = (
    "open_read", "open_write", "close", "pread", "map", "size_and_mtime", "is_deleted", "identity_and_links", "list",
    "non_regular_files", "read_file", "set_mtime",
)  # fmt: skip
COMPOSED = ("write_file", "view", "identity", "closing")
"""Operations that call others, each of which is reported."""
LOCKS = ("overwrite",)
"""Operations on the lock file. No opening trusts its text, so they are no crash points. ``faults`` makes them fail."""
JOBS = ("create_directory", "copy_permissions", "remove_tree", "entries")
"""Operations of jobs that read any directory and write a new store. tests/test_fresh_stores.py stops those that write. If the
engine calls one, the layer raises NotImplementedError."""
OPENINGS = ("open_read", "open_write", "create")
SYNCS = ("sync", "sync_directory")
DETAILS: dict[str, Callable[..., dict[str, Any]]] = {
    "pread": lambda size, offset: {"offset": offset},
    "pwrite": lambda data, offset: {"data": bytes(data), "offset": offset},
    "truncate": lambda size: {"offset": size},
    "set_mtime": lambda mtime_ns: {"offset": mtime_ns},
    "replace": lambda target: {"target": target},
}
"""For each operation the details in a report, made from its arguments after the first one."""


class WatchedFiles(Files):
    """``before`` may raise what the operating system would raise: then the operation does not happen."""

    def __init__(self) -> None:
        self.names: dict[int, Path] = {}
        """Path of each open descriptor."""
        self.busy = threading.RLock()

    def before(self, kind: str, path: Path, *, fd: int = -1, offset: int = 0, data: bytes = b"", target: Path | None = None):
        """Report an operation. Caller holds ``busy``. ``offset``: the new size for ``truncate``, the new time for
        ``set_mtime``."""

    def after(self, kind: str, path: Path, *, fd: int = -1) -> None:
        """Report that an operation succeeded. Caller holds ``busy``."""


def _watched(kind: str) -> Callable[..., Any]:
    """Return the method ``kind`` of ``WatchedFiles``."""

    def operate(self: WatchedFiles, subject: Path | int, *arguments: Any) -> Any:
        operation = getattr(super(WatchedFiles, self), kind)
        with self.busy:
            fd, path = (subject, self.names[subject]) if isinstance(subject, int) else (-1, subject)
            details = DETAILS[kind](*arguments) if kind in DETAILS else {}
            if kind == "close":  # a close that fails has closed the descriptor
                operation(fd)
                del self.names[fd]
            self.before(kind, path, fd=fd, **details)
            result = None if kind in (*SYNCS, "close") else operation(subject, *arguments)
            if kind in OPENINGS:
                fd = result
                self.names[fd] = path
            self.after(kind, path, fd=fd)
            return result

    return operate


def _refused(kind: str) -> Callable[..., Any]:
    def operate(self: WatchedFiles, path: Path, *arguments: Any) -> None:
        raise NotImplementedError(f"{kind}({path}) has no crash point in this harness")

    return operate


for _kind in {*CHANGES, *LOOKS}:
    setattr(WatchedFiles, _kind, _watched(_kind))
for _kind in JOBS:
    setattr(WatchedFiles, _kind, _refused(_kind))
