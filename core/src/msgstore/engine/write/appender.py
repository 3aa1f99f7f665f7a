"""Appender: turns stored bodies into records at the end of the current segment, and seals it when it is full.

Callers hold the flush lock, not the state lock: no other thread knows these records before the index has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add

import attrs

from msgstore.config import StoreConfig
from msgstore.engine.backends import Backends
from msgstore.engine.segment.segment import Segment
from msgstore.engine.state.accounting import AppendedRun, LiveAccounting
from msgstore.locations import NUMBER_SHIFT, OFFSET_SHIFT

_STEP = 1 << OFFSET_SHIFT


@attrs.define
class AppendResult:
    """Locations of appended, unindexed records."""

    locations: list[int] = attrs.field(factory=list)
    runs: list[AppendedRun] = attrs.field(factory=list)


class Appender:
    """One instance per open store."""

    def __init__(self, config: StoreConfig, backends: Backends, accounting: LiveAccounting) -> None:
        self._segment_limit = config.file_size_limit
        self._large_message = config.large_message
        self._form = backends.write_format
        self._accounting = accounting
        self._segments = accounting.segments
        self.seen_large = False
        """Set before the first large body is buffered: from then on batches are searched for large bodies."""
        self.on_roll: Callable[[], object] = lambda: None
        """Set by the store: a new segment was started."""

    def append(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> AppendResult:
        """Append records. A large body gets a segment of its own, so that its removal frees the space at once.

        Raises StoreIOError: records that this call has appended already stay in the segment, as garbage.
        """
        self._accounting.begin_change()
        result = AppendResult()
        large = [at for at, body in enumerate(bodies) if len(body) >= self._large_message] if self.seen_large else []
        cuts = sorted({0, len(bodies), *large, *(at + 1 for at in large)})
        for begin, end in pairwise(cuts):
            is_alone = begin in large
            current = self._segments.current
            if is_alone and (current is None or current.size > current.header_bytes):
                self.roll()
            encoded = ids[begin:end] if end - begin < len(ids) else ids
            data, sizes = self._form.format.encode(encoded, bodies[begin:end] if end - begin < len(bodies) else bodies)
            ends = list(accumulate(sizes))
            view, done, base = memoryview(data), 0, 0
            while done < len(ends):
                segment = self._segments.current
                if segment is None or segment.size >= self._segment_limit:
                    segment = self.roll()
                room = self._segment_limit - segment.size
                cut = min(bisect_left(ends, base + room, done) + 1, len(ends))  # with the record that crosses the limit
                count, size, offset = cut - done, ends[cut - 1] - base, segment.size
                self._accounting.mark_dirty(segment)
                self._segments.append(view[base : base + size])
                part = sizes[done:cut] if count < len(sizes) else sizes
                self._segments.hints.add(segment, offset, size, encoded[done:cut] if count < len(sizes) else encoded, part)
                # locations as of ``pack_location``: each record begins where the one before it ends
                first = segment.number << NUMBER_SHIFT | offset << OFFSET_SHIFT
                result.locations.extend(map(add, accumulate(map(_STEP.__mul__, part), initial=first), part))
                result.runs.append((segment, count, size))
                done, base = cut, base + size
            if is_alone:
                self.seal(appendable=False)
        return result

    def roll(self) -> Segment:
        """Seal the current segment and start a new one. Raises StoreIOError: then there is no current segment."""
        self.seal()
        try:
            segment = self._segments.roll(self._form)
        except BaseException:
            for segment in self._segments.unwritable:  # the file may exist: without a row the index would be rebuilt
                with self._accounting.state_lock:
                    self._accounting.mark_dirty(segment)
            raise
        self._accounting.mark_dirty(segment)
        self.on_roll()
        return segment

    def seal(self, *, appendable: bool = True) -> None:
        """Seal the current segment; there is none until the next ``roll``. Raises StoreIOError."""
        segment = self._segments.current
        if segment is None:
            self._segments.measure_unwritable()
            return
        self._segments.check_current()  # the last chance to notice that its file was replaced
        self._accounting.begin_change()
        segment.appendable &= appendable
        try:
            self._segments.seal_current()
        finally:
            with self._accounting.state_lock:
                self._accounting.on_sealed(segment)
