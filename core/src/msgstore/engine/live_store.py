"""A store that is open for reading while other processes may write it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import SegmentStats, StoreError
from msgstore.directory import segment_number
from msgstore.engine.open.recovery import Recovery
from msgstore.engine.open.startup import Parts
from msgstore.engine.read.live_reader import LiveReader
from msgstore.engine.read.writer_tracker import ReadView, WriterTracker
from msgstore.engine.segment.errors import io_errors
from msgstore.engine.state.checkpoint import Row, rows
from msgstore.engine.store import Entry, Store, StoreStats
from msgstore.files import Files
from msgstore.scan import FormatSet, WholeRecord


class LiveStore(Store):
    """A :class:`Store` with ``mode="r"`` that follows writers in other processes: each call sees everything that was confirmed
    before it began.

    Numbers are those of the last commit: what a writer has pending is not counted. While nobody has written since it was opened
    it shows what its opening has recovered, unconfirmed records included.
    """

    def __init__(self, config: StoreConfig, parts: Parts, tracker: WriterTracker, files: Files) -> None:
        super().__init__(config, parts, "r")
        self._following = tracker
        self._index = parts.writer.index
        self._reader: LiveReader = LiveReader(tracker, files, self._index, parts.reader)  # type: ignore[assignment]

    def stats(self) -> StoreStats:
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

        return self._following.consistently(look)

    def segments(self) -> list[SegmentStats]:
        """Every segment as of the last commit, in number order."""
        return self._following.consistently(lambda view: self._rows(view) if view.live else super(LiveStore, self).segments())

    def _rows(self, view: ReadView) -> list[SegmentStats]:
        with io_errors(self.path):
            state = self._index.load() or {}
        try:
            found = rows(state)
        except ValueError as error:
            raise StoreError(f"{self.path}: the index is damaged: {error}") from error
        formats = view.backends.formats
        named = sorted((number, name) for name in found if (number := segment_number(name, formats.extensions)) is not None)
        newest = named[-1][0] if named else -1
        return [_stats(number, name, found[name], formats, newest=newest) for number, name in named]

    def entries(self) -> Iterator[Entry]:
        """Every live message, by segment and offset, as of one commit not older than the call."""
        return self._following.consistently(lambda _: super(LiveStore, self).entries())

    def stored_body(self, entry: Entry) -> bytes:
        """The body of an entry as it is stored, wherever it is by now. MessageNotFound if it was removed meanwhile."""
        return self._following.consistently(
            lambda view: (
                self._reader.stored_now(view, entry.msg_id, entry.location)
                if view.live
                else super(LiveStore, self).stored_body(entry)
            )
        )

    def entry(self, msg_id: bytes) -> Entry | None:
        """Of one message, as of one commit not older than the call; None if there is none. ValueError for what is not an id."""
        return self._following.consistently(lambda _: super(LiveStore, self).entry(msg_id))

    def record(self, entry: Entry) -> WholeRecord:
        """The whole record of an entry, wherever it is by now. MessageNotFound if it was removed meanwhile."""
        return self._following.consistently(
            lambda view: (
                self._reader.record_now(view, entry.msg_id, entry.location)
                if view.live
                else super(LiveStore, self).record(entry)
            )
        )

    def references(self, msg_id: bytes) -> int:
        """The number of references of a message; 0 if there is none. ValueError for what is not an id."""
        return self._following.consistently(lambda _: super(LiveStore, self).references(msg_id))

    def close(self) -> None:
        self._following.close()
        self._reader.files.close()
        super().close()

    def abandon(self) -> None:
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
