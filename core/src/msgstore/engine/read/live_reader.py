"""Live reader: reads next to a writer in another process, without a lock between the two.

The writer puts data on disk before the index points to it, and the index says that a record is dead or has moved before its
bytes are overwritten, cut or deleted. So a location that is the same before and after a read proves that the bytes were the
message's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgstore.engine.backends import Backends
from msgstore.engine.read.reader import Fetched, Reader
from msgstore.engine.read.segment_file_cache import SegmentFileCache
from msgstore.engine.read.writer_tracker import ReadView, WriterTracker

T = TypeVar("T")


class LiveReader(Reader):
    """While no writer has come, reads what the opening recovered."""

    is_final = False

    def __init__(self, tracker: WriterTracker, files: SegmentFileCache, *parts: Any) -> None:
        """``parts``: arguments of :class:`Reader`."""
        super().__init__(*parts)
        self._tracker = tracker
        self._files = files

    def consistently(self, call: Callable[[Backends], T]) -> T:
        def with_view(view: ReadView) -> T:
            return call(view.backends) if view.live else super(LiveReader, self).consistently(call)

        return self._tracker.consistently(with_view)

    def _fetch(self, number: int, offset: int, size: int, backends: Backends) -> Fetched | None:
        if backends is self._backends:
            return super()._fetch(number, offset, size, backends)
        return self._files.read(number, offset, size, backends.formats)

    def _drop_file(self, number: int) -> None:
        self._files.drop(number)
