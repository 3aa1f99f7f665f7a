"""Appending: a batch of stored bodies becomes records of the current segment, and of the next ones when that is full.

With ``LiveAccounting.flushing``, without the lock: nobody knows these records before the index has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import add

import attrs

from msgstore.config import StoreConfig
from msgstore.contract.locations import NUMBER_SHIFT, OFFSET_SHIFT
from msgstore.engine.backends import Backends
from msgstore.engine.segment.segment import Segment
from msgstore.engine.state.accounting import LiveAccounting, Part

_STEP = 1 << OFFSET_SHIFT


@attrs.define
class AppendResult:
    """Where records are that the index does not know yet."""

    locations: list[int] = attrs.field(factory=list)
    parts: list[Part] = attrs.field(factory=list)


class Appender:
    """Of one open store."""

    def __init__(self, config: StoreConfig, backends: Backends, ledger: LiveAccounting) -> None:
        self._limit = config.file_size_limit
        self._large = config.large_message
        self._form = backends.write_format
        self._ledger = ledger
        self._segments = ledger.segments
        self.seen_large = False
        """Set before a large body is handed in; from then on they are looked for."""

    def append(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> AppendResult:
        """Bodies as the codec stores them. A large one gets a segment of its own, so that its removal frees the space at once.

        Raises StoreIOError; then what was appended is known to nobody, as are the records behind a crash.
        """
        self._ledger.begin_change()
        appended = AppendResult()
        at = 0
        for end in self._large_ones(bodies):
            if end > at:
                self._append_run(ids[at:end], bodies[at:end], appended)
            self._append_alone(ids[end], bodies[end], appended)
            at = end + 1
        if at < len(ids):
            self._append_run(ids[at:] if at else ids, bodies[at:] if at else bodies, appended)
        return appended

    def _large_ones(self, bodies: Sequence[bytes]) -> Iterator[int]:
        if self.seen_large:
            yield from (at for at, body in enumerate(bodies) if len(body) >= self._large)

    def _append_alone(self, msg_id: bytes, body: bytes, appended: AppendResult) -> None:
        current = self._segments.current
        if current is None or current.size > current.header_bytes:
            self.roll()
        self._append_run([msg_id], [body], appended)
        self.seal(appendable=False)

    def _append_run(self, ids: Sequence[bytes], bodies: Sequence[bytes], appended: AppendResult) -> None:
        data, sizes = self._form.format.encode(ids, bodies)
        ends = list(accumulate(sizes))
        view = memoryview(data)
        done = base = 0
        while done < len(ends):
            segment = self._segments.current
            if segment is None or segment.size >= self._limit:
                segment = self.roll()
            room = self._limit - segment.size
            cut = min(bisect_left(ends, base + room, done) + 1, len(ends))  # the record that fills the segment is its last
            count, size, offset = cut - done, ends[cut - 1] - base, segment.size
            part = sizes[done:cut] if count < len(sizes) else sizes
            self._ledger.touch(segment)
            self._segments.append(view[base : base + size])
            self._segments.hints.add(segment, offset, size, ids[done:cut] if count < len(ids) else ids, part)
            first = segment.number << NUMBER_SHIFT | offset << OFFSET_SHIFT
            appended.locations.extend(map(add, accumulate(map(_STEP.__mul__, part), initial=first), part))
            appended.parts.append((segment, count, size))
            done, base = cut, base + size

    def roll(self) -> Segment:
        """A new current segment. StoreIOError if there is no room for it: then there is none."""
        self.seal()
        try:
            segment = self._segments.roll(self._form)
        except BaseException:
            for segment in self._segments.unwritable:  # its file may be there: a file without a row would cost the whole index
                with self._ledger.lock:
                    self._ledger.touch(segment)
            raise
        self._ledger.touch(segment)
        if self._ledger.collector is not None:
            self._ledger.collector.look()
        return segment

    def seal(self, *, appendable: bool = True) -> None:
        """The current segment takes no more records; there is none until the next ``roll``."""
        segment = self._segments.current
        if segment is None:
            self._segments.seal_current()  # what was given up is measured
            return
        self._segments.check_current()  # or nobody would look again before its messages are confirmed
        self._ledger.begin_change()
        segment.appendable &= appendable
        try:
            self._segments.seal_current()
        finally:
            with self._ledger.lock:
                self._ledger.sealed(segment)
