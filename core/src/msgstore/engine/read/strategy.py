"""Read strategies: how a reader gets a consistent look at index and segments.

``LockedStrategy`` serves the process that writes, or reads a store without a writer: the state lock keeps everything in place.
``FollowingStrategy`` serves a reader next to a writer in another process, without a lock between the two. The writer puts
data on disk before the index points to it, and the index says that a record is dead or has moved before its bytes are
overwritten, cut or deleted. So a location that is the same before and after a read proves that the bytes were the message's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import attrs

from msgstore.contract import StoreError
from msgstore.engine.backends import Backends
from msgstore.engine.read.segment_file_cache import SegmentFileCache
from msgstore.engine.read.writer_tracker import ReadView, WriterTracker
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.scan import OpenFormat
from msgstore.writer_lock import read_lock

T = TypeVar("T")
Buffered = tuple[bytes, object]
"""Entry of the write buffer: the stored body comes first."""


@attrs.frozen
class Fetched:
    """Bytes of a segment, and what is needed to decode them."""

    path: Path
    form: OpenFormat
    data: bytes


class ReadStrategy(Protocol):
    """Thread-safe."""

    @property
    def is_final(self) -> bool:
        """True if no location can change while ``consistently`` runs."""

    def consistently(self, call: Callable[[Backends], T]) -> T:
        """Return ``call(backends)``, made while index and segments fit each other. Raises StoreClosed, StoreError."""

    def buffered(self, msg_id: bytes) -> Buffered | None:
        """Return the write buffer's entry of a message that is not on disk yet."""

    def fetch(self, number: int, offset: int, size: int, backends: Backends) -> Fetched | None:
        """Read bytes of a segment; None if the read has to be repeated. Raises OSError, StoreError."""

    def drop_file(self, number: int) -> None:
        """Open the segment file again at the next ``fetch``."""

    def check_unchanged(self) -> None:
        """Raise StoreError if damage may be the work of a writer that came since the store was opened."""


class LockedStrategy:
    """Reads of an open store under the state lock. Callers of ``fetch`` hold it."""

    is_final = True

    def __init__(
        self,
        backends: Backends,
        accounting: LiveAccounting,
        lifecycle: Lifecycle,
        buffered: Callable[[bytes], Buffered | None],
        lock_text: bytes | None,
    ) -> None:
        self.backends = backends
        self._segments: Segments = accounting.segments
        self._state_lock = accounting.state_lock
        self._lifecycle = lifecycle
        self._lock_text = lock_text
        self.buffered = buffered

    def consistently(self, call: Callable[[Backends], T]) -> T:
        with self._state_lock:
            self._lifecycle.check_open()
            return call(self.backends)

    def fetch(self, number: int, offset: int, size: int, backends: Backends) -> Fetched | None:
        fd, _ = self._segments.reader(number)
        segment = self._segments.get(number)
        return Fetched(segment.path, segment.form, self._segments.files.pread(fd, size, offset))

    def drop_file(self, number: int) -> None:
        pass

    def check_unchanged(self) -> None:
        directory = self._segments.directory
        if self._lock_text is not None and read_lock(directory) != self._lock_text:
            raise StoreError(
                f"{directory}: another process has opened the store for writing since it was opened for reading here, and may "
                "have moved the message; open it again"
            )


class FollowingStrategy:
    """Reads next to a writer in another process; while no writer has come, reads of what the opening recovered."""

    is_final = False

    def __init__(self, tracker: WriterTracker, files: SegmentFileCache, recovered: LockedStrategy) -> None:
        self._tracker = tracker
        self._files = files
        self._recovered = recovered

    def consistently(self, call: Callable[[Backends], T]) -> T:
        def with_view(view: ReadView) -> T:
            return call(view.backends) if view.live else self._recovered.consistently(call)

        return self._tracker.consistently(with_view)

    def buffered(self, msg_id: bytes) -> Buffered | None:
        return None

    def fetch(self, number: int, offset: int, size: int, backends: Backends) -> Fetched | None:
        if backends is self._recovered.backends:
            return self._recovered.fetch(number, offset, size, backends)
        found = self._files.read(number, offset, size, backends.formats)
        if found is None:
            return None
        file, data = found
        return Fetched(file.path, backends.formats.by_extension(file.path.suffix), data)

    def drop_file(self, number: int) -> None:
        self._files.drop(number)

    def check_unchanged(self) -> None:
        self._recovered.check_unchanged()
