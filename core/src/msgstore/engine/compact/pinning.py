"""Segments at work: what of a sealed segment is alive, while writers, readers and removers go on.

A segment is *marked* under the store's lock. From then on nobody deletes it, no dead record in it is revived, and the locations
of records that die are noted. So what a scan finds alive without the lock, and what died since the mark, must be together what
was alive at the mark, to a record: if it is not, the index and the segment do not agree, and nothing may be overwritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import eq

import attrs

from msgstore.contract import BrokenPlugin, Buffer, Columns, Index, SegmentScan
from msgstore.engine.compact.compaction_plan import Live
from msgstore.engine.compact.gc_context import GcContext
from msgstore.engine.segment.segment import Segment
from msgstore.scan import OpenFormat
from msgstore.scan.sound import scan_checked


class InconsistentSegment(Exception):
    """A segment that must not be rewritten or deleted."""

    def __init__(self, segment: Segment, reason: str, *, damaged: bool = True) -> None:
        super().__init__(reason)
        self.segment = segment
        self.reason = reason
        self.damaged = damaged


@contextlib.contextmanager
def blamed(segment: Segment, form: OpenFormat, call: str) -> Iterator[None]:
    """Around a call of a format in the collection of ``segment``: what it raises becomes InconsistentSegment, which names the plugin."""
    try:
        with form.attribute_errors(call):
            yield
    except BrokenPlugin as error:
        raise InconsistentSegment(segment, str(error), damaged=False) from error.__cause__


@attrs.define
class PinnedSegment:
    segment: Segment
    count: int
    """Live records when it was marked."""

    def live(self, context: GcContext, data: Buffer) -> Live:
        """The records of ``data``, the whole segment, that are alive, by offset. Raises InconsistentSegment.

        Without the lock; some may be dead when this returns, and then ``segment.died_since_pin`` has them.
        """
        segment = self.segment
        with blamed(segment, segment.form, "scan"):
            scan = scan_checked(segment.form.format, data)
        reason = _damage(segment, scan)
        if reason:
            raise InconsistentSegment(segment, reason)
        live = live_records(context.index, segment.number, scan)
        if len(live) and live.offsets[0] < segment.header_bytes:
            raise InconsistentSegment(segment, f"a record begins at offset {live.offsets[0]}, inside of the header")
        with context.state_lock:
            died = self.died.copy()
        known = len(died.union(live.locations(segment.number))) if died else len(live)
        if known != self.count:
            lost = self.count - known
            raise InconsistentSegment(segment, f"{lost} of its {self.count} live records are not where the index says")
        return live

    @property
    def died(self) -> set[int]:
        """Under the lock: the locations of the records that died since the mark."""
        assert self.segment.died_since_pin is not None
        return self.segment.died_since_pin

    @property
    def name(self) -> str:
        return self.segment.path.name


@contextlib.contextmanager
def pin(context: GcContext, numbers: Sequence[int]) -> Iterator[list[PinnedSegment]]:
    """Inside, the segments are marked; none if one of them is gone meanwhile, or is empty and about to go.

    One that is empty afterwards is noted for deletion.
    """
    # In turn: records that were appended just before a segment was sealed may not be in the index yet.
    with context.flush_lock, context.state_lock:
        found = [segment for number in numbers if (segment := context.segments.by_number.get(number))]
        segments = found if len(found) == len(numbers) and any(segment.live_count for segment in found) else []
        for segment in segments:
            segment.died_since_pin = set()
            context.accounting.forget_revivable(segment)
        sources = [PinnedSegment(segment, segment.live_count) for segment in segments]
    try:
        yield sources
    finally:
        with context.state_lock:
            for segment in segments:
                segment.died_since_pin = None
            for segment in found:
                if not segment.live_count:
                    context.accounting.queue_deletion(segment)


def live_records(index: Index, number: int, scan: SegmentScan) -> Live:
    """The records of a scan that the index points to. A later copy counts if it is the one pointed to."""
    first = _alive(index, number, scan.records)
    if not len(scan.duplicates):
        return first
    later = _alive(index, number, scan.duplicates)
    rows = sorted(zip((*first.offsets, *later.offsets), (*first.sizes, *later.sizes), (*first.ids, *later.ids), strict=True))
    return Live([msg_id for _, _, msg_id in rows], [offset for offset, _, _ in rows], [size for _, size, _ in rows])


def _alive(index: Index, number: int, columns: Columns) -> Live:
    ids = columns.id_list()
    everything = Live(ids, columns.offsets, columns.sizes)
    alive = list(map(eq, map(index.get, ids), everything.locations(number)))
    offsets, sizes = (list(compress(column, alive)) for column in (columns.offsets, columns.sizes))
    return Live(list(compress(ids, alive)), offsets, sizes)


def _damage(segment: Segment, scan: SegmentScan) -> str | None:
    """Why a segment must not be rewritten or deleted after this scan; None if it may."""
    torn_write = scan.end.state == "torn" and not segment.quarantined  # never finished, and nothing stands behind it
    if scan.end.state != "clean" and not torn_write:
        return f"its end is {scan.end.state} at offset {scan.end.offset}" + (f" ({scan.end.reason})" if scan.end.reason else "")
    if scan.damage:
        return f"it is damaged at offset {scan.damage[0].offset} ({scan.damage[0].reason})"
    return None
