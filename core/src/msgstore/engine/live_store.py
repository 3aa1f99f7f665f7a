"""Live store: a store that is open for reading while other processes may write it.

Next to a writer nothing is recovered, because the writer keeps the index right. Without a writer the store is opened as any
other, and follows the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import SegmentStats, StoreError, StoreLocked, StoreMismatch
from msgstore.directory import find_segments, known_settings, segment_number
from msgstore.engine.backends import Backends, make_index, of_index, resolve
from msgstore.engine.open.clean_shutdown import ShutdownFiles
from msgstore.engine.open.recovery_plan import Recovery, RecoveryProgress, compare_with_index
from msgstore.engine.open.startup import OpenDirectory, open_directory, warn_of_codec
from msgstore.engine.read.live_reader import LiveReader, ReadView, WriterTracker
from msgstore.engine.segment.segment import Segment, io_errors
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.accounting import LiveAccounting, SharedBodies
from msgstore.engine.state.checkpoint import LAYOUT, LAYOUT_KEY, rows
from msgstore.engine.stats import StoreStats, sums_of
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue
from msgstore.writer_lock import check_no_writer, parse_lock

_NOT_NOTED = "it was opened without being noted anywhere. Open it again"
_MAX_ATTEMPTS = 20
"""Writers that may come and go while the store is being opened."""


def open_live(
    config: StoreConfig,
    catalogue: Catalogue,
    files: Files,
    *,
    refcounts: Iterable[tuple[bytes, int]] | None,
    progress: RecoveryProgress | None,
    follow: bool,
) -> LiveStore:
    """Open a store for reading. Without ``follow`` nothing is written, and it can be read until a writer comes."""
    if not config.path.is_dir():
        raise StoreError(f"{config.path}: there is no such directory")
    counts = None if refcounts is None else list(refcounts)
    open_alone = partial(open_directory, config, catalogue, files, read_only=True, refcounts=counts, progress=progress)
    for _ in range(_MAX_ATTEMPTS):
        with ExitStack() as undo:
            tracker = WriterTracker(config.path)
            undo.callback(tracker.close)
            text = tracker.text()
            obstacle = None if follow else _NOT_NOTED
            writer = _writer(config.path)
            if writer is not None and writer.pid == os.getpid():
                raise writer
            try:
                if writer is not None:
                    opened = _look_beside(config, catalogue, files)
                else:
                    try:
                        opened = open_alone(live=follow)
                    except StoreError as error:
                        if not (follow and isinstance(error.__cause__, PermissionError)):
                            raise
                        obstacle = str(error)  # without a writer all can be read, but no writer would know of this reader
                        opened = open_alone()
            except StoreError:
                if writer is not None or tracker.text() == text:
                    raise
                continue
            store = LiveStore(opened, catalogue, tracker, obstacle if writer is None else None)
            undo.callback(store.close)
            tracker.begin(store.make_view, ReadView(text, opened.backends, live=False) if writer is None else None)
            if writer is not None or tracker.text() == text:
                undo.pop_all()
                return store
    raise StoreError(f"{config.path}: writers came and went {_MAX_ATTEMPTS} times while the store was being opened; try again")


def _look_beside(config: StoreConfig, catalogue: Catalogue, files: Files) -> OpenDirectory:
    """Return the state of a store beside its writer. Segments and index belong to the writer: nothing is scanned or loaded."""
    remembered = known_settings(files, config.path)
    backends = resolve(config, catalogue, remembered)
    backends.formats.check_all_read(config.path, files.list(config.path), remembered)
    warn_of_codec(config, remembered)
    segments = Segments(config.path, files, backends.formats)
    index, is_persistent = make_index(config, catalogue, files, read_only=True, live=True)
    accounting = LiveAccounting(segments, index, SharedBodies(config.shared_cache), is_persistent=is_persistent)
    return OpenDirectory(config, backends, accounting, Recovery("live"), set(), None)


class LiveStore(Store):
    """A :class:`Store` with ``mode="r"`` that follows writers in other processes.

    Each call sees everything that was confirmed before it began. Numbers are those of the last commit: buffered messages of a
    writer are not counted. Until a writer comes, the store shows what its opening recovered, unconfirmed records included.
    """

    def __init__(
        self, opened: OpenDirectory, catalogue: Catalogue, tracker: WriterTracker, obstacle: str | None = None
    ) -> None:
        """``obstacle``: why the index cannot be read next to a writer, or None."""
        self._catalogue = catalogue
        self._tracker = tracker
        self._obstacle = obstacle
        self._files = opened.accounting.segments.files
        super().__init__(opened, "r", partial(LiveReader, tracker))

    def stats(self) -> StoreStats:
        """Return statistics as of the last commit."""

        def look(view: ReadView) -> StoreStats:
            stats = super(LiveStore, self).stats()
            if not view.live:
                return stats
            segments = self._rows(view)
            return attrs.evolve(
                stats,
                messages=sum(segment.live_count for segment in segments),
                **sums_of(segments),
                recovery=Recovery("live"),
            )

        return self._tracker.consistently(look)

    def segments(self) -> list[SegmentStats]:
        """Return statistics of every segment as of the last commit, in number order."""
        return self._tracker.consistently(lambda view: self._rows(view) if view.live else super(LiveStore, self).segments())

    def _rows(self, view: ReadView) -> list[SegmentStats]:
        with io_errors(self.path):
            state = self._index.load() or {}
        try:
            found = rows(state)
        except ValueError as error:
            raise StoreError(f"{self.path}: the index is damaged: {error}") from error
        formats = view.backends.formats
        published = sorted((number, name) for name in found if (number := segment_number(name, formats.extensions)) is not None)
        newest = published[-1][0] if published else -1
        stats = []
        for number, name in published:
            row, form = found[name], formats.by_extension(Path(name).suffix)
            segment = Segment(number, self.path / name, form, row.size, row.live_count, row.live_bytes)
            segment.quarantined = row.quarantined
            stats.append(segment.stats(current=number == newest and row.mtime_ns is None and not row.compacting))
        return stats

    def make_view(self, text: bytes) -> ReadView | None:
        """Return the view for a text of the lock file; None while a writer is opening the store.

        Raises StoreLocked if this process is the writer, StoreMismatch, StoreError.
        """
        config, directory = self._opened.config, self.path
        _, session = parse_lock(text)
        writer = _writer(self.path)
        if writer is not None:
            if writer.pid == os.getpid():
                raise writer
            if not session:
                return None
        if self._obstacle is not None:
            raise StoreError(
                f"{directory}: another process has opened the store since, and this one cannot read beside it: {self._obstacle}"
            )
        remembered = known_settings(self._files, directory)
        if remembered is None or remembered.index != config.index.name:
            found = "none" if remembered is None else repr(remembered.index)
            raise StoreMismatch(
                f"{directory}: the store is kept with the index {found} now, not with {config.index.name!r} as "
                f"configured here. Open it as its writer does."
            )
        with of_index(config.index.name, config, self._catalogue, "load its entries in"):
            state = self._index.load() or {}
        if state.get(LAYOUT_KEY) != LAYOUT:
            if writer is not None:
                return None
            raise StoreError(
                f"{directory}: the index is not complete: the last writer was stopped while it rebuilt it. Open the store for "
                f"writing, which does that."
            )
        backends = resolve(config, self._catalogue, remembered)
        backends.formats.check_all_read(directory, self._files.list(directory), remembered)
        if writer is None:
            self._check_unchanged(state, backends)
        return ReadView(text, backends)

    def _check_unchanged(self, state: dict[bytes, bytes], backends: Backends) -> None:
        """Raise StoreError if another program has changed the segments since the last writer: then the index is out of date."""
        directory = self.path
        segments = Segments(directory, self._files, backends.formats)
        for found in find_segments(self._files, directory, backends.formats.extensions):
            segments.add_found(found)
        plan = compare_with_index(state, segments, ShutdownFiles.read(self._files, directory))
        if plan.refusal is not None or plan.lost:
            raise StoreError(
                f"{directory}: another program has changed the segments since the last writer; close the store, and open it "
                f"again."
            )

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self._tracker.close()
        super().close()

    def abandon(self) -> None:
        """Same as ``close``: there is nothing to lose."""
        self.close()


def _writer(directory: Path) -> StoreLocked | None:
    """Return the error that names the process which has the store open for writing, if there is one."""
    try:
        check_no_writer(directory)
    except StoreLocked as error:
        return error
    return None
