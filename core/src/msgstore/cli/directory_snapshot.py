"""Periodic snapshots of a store directory, and the difference between two of them (used by ``msgstore top``).

A snapshot reads names, sizes and times, and tests for an instant whether a writer holds the store's lock. It never waits for a
writer, and no writer waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from msgstore.cli.stores import StoreTarget
from msgstore.contract import Capability, MsgStoreError, StoreError, StoreLocked
from msgstore.directory import SETTINGS, list_segments
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.writer_lock import check_no_writer


@attrs.frozen
class IndexFigures:
    """Figures that only the index has, as of its last commit."""

    messages: int
    live_bytes: Mapping[str, int]
    """Live bytes of each file."""
    garbage_bytes: int


@attrs.frozen
class DirectorySnapshot:
    """State of a directory at one moment. Sizes in bytes."""

    at: float
    """Seconds of the monotonic clock."""
    clock: float
    """Seconds since 1970."""
    segments: Mapping[str, tuple[int, int]]
    """File to (size, modification time in nanoseconds), in number order."""
    unfinished: int
    """Number of files that are still written under a temporary name."""
    is_open: bool
    """True if a process has the store open for writing."""
    writer: int | None
    """Id of the writing process, if the lock file names it."""
    index_figures: IndexFigures | None
    """None if the index cannot be read without reading segments."""

    @property
    def bytes_on_disk(self) -> int:
        return sum(size for size, _ in self.segments.values())


@attrs.frozen
class SnapshotDiff:
    """Changes between two snapshots, as far as sizes show them. Files that were created and deleted in between are not seen."""

    seconds: float
    written: int
    """Bytes by which segments grew, new segments included."""
    freed: int
    """Bytes by which segments shrank, deleted segments included."""
    created: list[str]
    deleted: list[str]
    shrunk: list[str]
    """Segments that a collection has truncated."""
    messages: int | None
    """Change of the number of messages, or None if unknown."""

    @classmethod
    def between(cls, before: DirectorySnapshot, after: DirectorySnapshot) -> SnapshotDiff:
        """Compare two snapshots of one directory."""
        old = {name: size for name, (size, _) in before.segments.items()}
        new = {name: size for name, (size, _) in after.segments.items()}
        grown = {name: size - old.get(name, 0) for name, size in new.items()}
        deleted = [name for name in old if name not in new]
        old_figures, new_figures = before.index_figures, after.index_figures
        return cls(
            seconds=max(after.at - before.at, 1e-9),
            written=sum(size for size in grown.values() if size > 0),
            freed=sum(old[name] for name in deleted) - sum(size for size in grown.values() if size < 0),
            created=[name for name in new if name not in old],
            deleted=deleted,
            shrunk=[name for name, size in grown.items() if size < 0],
            messages=new_figures.messages - old_figures.messages if old_figures and new_figures else None,
        )


class DirectorySampler:
    """Takes snapshots of one store directory."""

    def __init__(self, target: StoreTarget, files: Files) -> None:
        self._target = target
        self._files = files
        self._extensions = target.catalogue.formats_by_extension()
        self._persistent = Capability.PERSISTENT in target.catalogue.index(target.config.index.name).capabilities
        self._cached: tuple[object, IndexFigures | None] = None, None

    def sample(self) -> DirectorySnapshot:
        """Return a snapshot. Raises OSError if the directory cannot be listed."""
        directory = self._target.path
        at, clock = time.monotonic(), time.time()
        names = self._files.list(directory)
        found = list_segments(self._files, directory, self._extensions)
        segments = {segment.path.name: (segment.size, segment.mtime_ns) for segment in found}
        is_open, writer = self._writer(directory)
        return DirectorySnapshot(
            at=at,
            clock=clock,
            segments=segments,
            unfinished=sum(name.endswith(".tmp") for name in names),
            is_open=is_open,
            writer=writer,
            index_figures=self._index_figures(names, is_open=is_open),
        )

    def _writer(self, directory: Path) -> tuple[bool, int | None]:
        """Return (a writer has the store open, its process id if known)."""
        try:
            check_no_writer(directory)
        except StoreLocked as error:
            return True, error.pid
        except (StoreError, OSError):
            return False, None
        return False, None

    def _index_figures(self, names: Mapping[str, tuple[int, int]], *, is_open: bool) -> IndexFigures | None:
        """Return the figures of an index that loads without reading segments: persistent, or saved at a clean shutdown.

        If no writer has the store open, the index is read again only when a file has changed.
        """
        if not self._persistent and (is_open or not {CLEAN, SETTINGS} <= names.keys()):
            return None
        key = dict(names)
        if is_open or self._cached[0] != key:
            self._cached = key, self._read_index()
        return self._cached[1]

    def _read_index(self) -> IndexFigures | None:
        """Open the store read-only and return its figures, or None if that fails."""
        try:
            with open_configured(self._target.config, self._target.catalogue, mode="r", files=self._files) as store:
                stats = store.stats()
                live = {segment.file: segment.live_bytes for segment in store.segments()}
                return IndexFigures(stats.messages, live, stats.garbage_bytes)
        except (MsgStoreError, OSError):
            return None
