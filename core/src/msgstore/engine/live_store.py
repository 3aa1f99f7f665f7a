"""Live store: a store that is open for reading while other processes may write it."""

from __future__ import annotations

from pathlib import Path

import attrs

from msgstore.contract import SegmentStats, StoreError
from msgstore.directory import segment_number
from msgstore.engine.open.recovery_plan import Recovery
from msgstore.engine.open.startup import OpenDirectory
from msgstore.engine.read.segment_file_cache import SegmentFileCache
from msgstore.engine.read.strategy import FollowingStrategy
from msgstore.engine.read.writer_tracker import ReadView, WriterTracker
from msgstore.engine.segment.segment import io_errors
from msgstore.engine.state.checkpoint import Row, rows
from msgstore.engine.store import Store, StoreStats
from msgstore.files import Files
from msgstore.scan import FormatSet


class LiveStore(Store):
    """A :class:`Store` with ``mode="r"`` that follows writers in other processes.

    Each call sees everything that was confirmed before it began. Numbers are those of the last commit: buffered messages of a
    writer are not counted. Until a writer comes, the store shows what its opening recovered, unconfirmed records included.
    """

    def __init__(self, opened: OpenDirectory, tracker: WriterTracker, files: Files) -> None:
        super().__init__(opened, "r")
        self._tracker = tracker
        self._file_cache = SegmentFileCache(tracker.directory, files)
        self._read_with(FollowingStrategy(tracker, self._file_cache, self._locked_strategy))

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
                segments=len(segments),
                bytes_on_disk=sum(segment.size for segment in segments),
                live_bytes=sum(segment.live_bytes for segment in segments),
                garbage_bytes=sum(segment.garbage_bytes for segment in segments),
                quarantined=sum(segment.quarantined for segment in segments),
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
        return [_stats(number, name, found[name], formats, newest=newest) for number, name in published]

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self._tracker.close()
        self._file_cache.close()
        super().close()

    def abandon(self) -> None:
        """Same as ``close``: there is nothing to lose."""
        self.close()


def _stats(number: int, name: str, row: Row, formats: FormatSet, *, newest: int) -> SegmentStats:
    form = formats.by_extension(Path(name).suffix)
    return SegmentStats(
        number=number,
        file=name,
        format=form.name,
        size=row.size,
        live_count=row.live_count,
        live_bytes=row.live_bytes,
        header_bytes=len(form.format.header),
        current=number == newest and row.mtime_ns is None and not row.compacting,
        quarantined=row.quarantined,
    )
