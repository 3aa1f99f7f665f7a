"""Looking at a directory from outside, again and again: what two looks say about what happened in between.

A look reads names, sizes and times, and asks for an instant whether somebody holds the store's lock. Nothing of it waits for
a writer or makes one wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from msgstore.cli.stores import StoreTarget
from msgstore.contract import Capability, MsgStoreError, StoreError, StoreLocked
from msgstore.directory import SETTINGS, list_segments
from msgstore.engine.open.clean_marker import CLEAN
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.writer_lock import check_no_writer


@attrs.frozen
class IndexFigures:
    """What only the index knows, as of its last commit."""

    messages: int
    live_bytes: Mapping[str, int]
    """By file."""
    garbage_bytes: int


@attrs.frozen
class DirectorySnapshot:
    """A directory at one moment. Sizes in bytes."""

    at: float
    """Seconds, of a clock that only goes forward."""
    clock: float
    """Seconds since 1970."""
    segments: Mapping[str, tuple[int, int]]
    """File to (size, time in nanoseconds), in number order."""
    unfinished: int
    """Files that are being written under a name that is not yet theirs."""
    is_open: bool
    """Whether somebody has the store open for writing."""
    writer: int | None
    """The process that has, if the lock says which."""
    known: IndexFigures | None
    """None if nobody but a writer knows."""

    @property
    def bytes_on_disk(self) -> int:
        return sum(size for size, _ in self.segments.values())


@attrs.frozen
class SnapshotDiff:
    """What happened between two looks, as far as sizes tell. What came and went in between is not seen."""

    seconds: float
    written: int
    """Bytes by which segments grew, new ones included."""
    freed: int
    """Bytes by which segments shrank, deleted ones included."""
    begun: list[str]
    deleted: list[str]
    shrunk: list[str]
    """Segments that a collection has cut."""
    messages: int | None
    """By how many there are more, or less; None if that is not known."""

    @classmethod
    def between(cls, before: DirectorySnapshot, after: DirectorySnapshot) -> SnapshotDiff:
        old = {name: size for name, (size, _) in before.segments.items()}
        new = {name: size for name, (size, _) in after.segments.items()}
        grown = {name: size - old.get(name, 0) for name, size in new.items()}
        deleted = [name for name in old if name not in new]
        known = before.known and after.known
        return cls(
            seconds=max(after.at - before.at, 1e-9),
            written=sum(size for size in grown.values() if size > 0),
            freed=sum(old[name] for name in deleted) - sum(size for size in grown.values() if size < 0),
            begun=[name for name in new if name not in old],
            deleted=deleted,
            shrunk=[name for name, size in grown.items() if size < 0],
            messages=after.known.messages - before.known.messages if known and after.known and before.known else None,
        )


class DirectorySampler:
    """Looks at one store's directory."""

    def __init__(self, target: StoreTarget, files: Files) -> None:
        self._target = target
        self._files = files
        self._extensions = target.catalogue.formats_by_extension()
        self._persistent = Capability.PERSISTENT in target.catalogue.index(target.config.index.name).capabilities
        self._last: tuple[object, IndexFigures | None] = None, None

    def sample(self) -> DirectorySnapshot:
        """Raises OSError if the directory cannot be listed."""
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
            known=self._known(names, is_open=is_open),
        )

    def _writer(self, directory: Path) -> tuple[bool, int | None]:
        try:
            check_no_writer(directory)
        except StoreLocked as error:
            return True, error.pid
        except (StoreError, OSError):
            return False, None
        return False, None

    def _known(self, names: Mapping[str, tuple[int, int]], *, is_open: bool) -> IndexFigures | None:
        """From an index that can say so without reading segments: a persistent one, or one that was saved at a clean stop.

        Of a store that nobody has open it is asked again only when a file has changed.
        """
        if not self._persistent and (is_open or not {CLEAN, SETTINGS} <= names.keys()):
            return None
        seen = dict(names)
        if is_open or self._last[0] != seen:
            self._last = seen, self._read_index()
        return self._last[1]

    def _read_index(self) -> IndexFigures | None:
        try:
            with open_configured(self._target.config, self._target.catalogue, mode="r", files=self._files) as store:
                stats = store.stats()
                live = {segment.file: segment.live_bytes for segment in store.segments()}
                return IndexFigures(stats.messages, live, stats.garbage_bytes)
        except (MsgStoreError, OSError):
            return None
