"""Live store: a read-only store that follows a writer in another process."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import attrs

from msgstore.contract import SegmentStats, StoreError, StoreLocked, StoreMismatch
from msgstore.directory import known_settings, segment_number
from msgstore.engine.backends import load_entries, of_index, resolve
from msgstore.engine.open.recovery_plan import Recovery
from msgstore.engine.open.startup import OpenDirectory
from msgstore.engine.read.live_reader import LiveReader, ReadView, WriterTracker
from msgstore.engine.segment.segment import Segment, io_errors
from msgstore.engine.state.checkpoint import LAYOUT, LAYOUT_KEY, rows
from msgstore.engine.stats import StoreStats, sums_of
from msgstore.engine.store import Store
from msgstore.writer_lock import check_no_writer, parse_lock


class LiveStore(Store):
    """A :class:`Store` with ``mode="r"`` that follows writers in other processes.

    Each call sees everything that was confirmed before it began; with ``fsync_every``, everything up to the last sync. Numbers
    are those of the last commit: buffered messages of a writer are not counted. Until a writer comes, the store shows what its
    opening recovered, unconfirmed records included.
    """

    def __init__(self, opened: OpenDirectory, tracker: WriterTracker, view: ReadView | None, obstacle: str | None) -> None:
        """``view``: what the opening has recovered; None if there is a writer. ``obstacle``: why the index cannot be read next
        to a writer, or None. Raises StoreError if the writer cannot be followed."""
        self._catalogue = opened.backends.formats.catalogue
        self._tracker = tracker
        self._obstacle = obstacle
        super().__init__(opened, "r", partial(LiveReader, tracker))
        tracker.begin(self.make_view, view)

    def stats(self) -> StoreStats:
        """Return statistics as of the last commit."""

        def look(view: ReadView) -> StoreStats:
            stats = super(LiveStore, self).stats()
            if not view.live:
                return stats
            segments = self._rows(view)
            messages = sum(segment.live_count for segment in segments)
            return attrs.evolve(stats, messages=messages, **sums_of(segments), recovery=Recovery("live"))

        return self._tracker.consistently(look)

    def segments(self) -> list[SegmentStats]:
        """Return statistics of every segment as of the last commit, in number order."""
        return self._tracker.consistently(lambda view: self._rows(view) if view.live else super(LiveStore, self).segments())

    def _rows(self, view: ReadView) -> list[SegmentStats]:
        with self._accounting.state_lock, io_errors(self.path):
            state = load_entries(self._index)
        try:
            found = rows(state)
        except ValueError as error:
            raise StoreError(f"{self.path}: the index is damaged: {error}") from error
        formats = view.backends.formats
        published = sorted((number, name) for name in found if (number := segment_number(name, formats.extensions)) is not None)
        stats = []
        for number, name in published:
            row, form = found[name], formats.by_extension(Path(name).suffix)
            segment = Segment(number, self.path / name, form, row.size, row.live_count, row.live_bytes)
            segment.quarantined = row.quarantined
            is_newest = (number, name) == published[-1]
            stats.append(segment.stats(current=is_newest and row.mtime_ns is None and not row.compacting))
        return stats

    def make_view(self, text: bytes) -> ReadView | None:
        """Return the view for a text of the lock file; None while a writer is opening the store.

        Raises StoreLocked if this process is the writer, StoreMismatch, StoreError.
        """
        config, directory, files = self._opened.config, self.path, self._segments.files
        _, session = parse_lock(text)
        has_writer = other_writer(directory) is not None
        if has_writer and not session:
            return None
        if self._obstacle is not None:
            raise StoreError(
                f"{directory}: another process has opened the store since, and this one cannot read beside it: {self._obstacle}"
            )
        remembered = known_settings(files, directory)
        if remembered is None or remembered.index != config.index.name:
            found = "none" if remembered is None else repr(remembered.index)
            raise StoreMismatch(
                f"{directory}: the store is kept with the index {found} now, not with {config.index.name!r} as "
                f"configured here. Open it as its writer does."
            )
        with self._accounting.state_lock, of_index(config.index.name, config, self._catalogue, "load its entries in"):
            state = load_entries(self._index)
        if state.get(LAYOUT_KEY) != LAYOUT:
            if has_writer:
                return None
            raise StoreError(
                f"{directory}: the index is not complete: the last writer was stopped while it rebuilt it. Open the store for "
                f"writing, which does that."
            )
        backends = resolve(config, self._catalogue, remembered)
        backends.formats.check_all_read(directory, files.list(directory), remembered)
        return ReadView(text, backends)

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self._tracker.close()
        super().close()

    def abandon(self) -> None:
        """Close the store, also after an interrupt: there is nothing to lose."""
        self._tracker.close()
        super().abandon()


def other_writer(directory: Path) -> StoreLocked | None:
    """Return the error that names the process which has the store open for writing, if there is one. Raises it if that is this
    process: an index cannot be open twice."""
    try:
        check_no_writer(directory)
    except StoreLocked as error:
        if error.pid == os.getpid():
            raise
        return error
    return None
