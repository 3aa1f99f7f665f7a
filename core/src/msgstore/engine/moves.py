"""Compaction in place, as a plan: which records move into which gaps, and where the file can then be cut. Pure.

Records are taken from the end of the segment and put into the first gap that has room, so that the tail becomes free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import attrs

from msgstore.contract import SegmentFormat


@attrs.frozen
class Live:
    """A live record, where it is."""

    offset: int
    size: int
    msg_id: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


@attrs.define
class Gap:
    """Everything between two live records, and what moves into it, in order."""

    offset: int
    size: int
    room: int
    """Bytes of records that it can still take."""
    moved: list[Live] = attrs.field(factory=list)

    def targets(self) -> Iterator[tuple[Live, int]]:
        """Each moved record with its new offset."""
        at = self.offset
        for record in self.moved:
            yield record, at
            at += record.size


@attrs.frozen
class Plan:
    gaps: list[Gap]
    """Those in front of ``end``, in order, with or without moved records."""
    end: int
    """The size of the segment afterwards."""


def plan(form: SegmentFormat, live: Sequence[Live]) -> Plan:
    """``live``: every live record of the segment, by offset."""
    gaps = list(_gaps(form, live))
    free = _FreeGaps(gaps)
    staying = len(live)
    end = len(form.header)  # of what has moved: the file cannot be cut below, so what stands below need not move
    while staying and live[staying - 1].offset >= end and (gap := free.take(live[staying - 1])):
        staying -= 1
        gap.moved.append(live[staying])
        gap.room -= live[staying].size
        end = max(end, gap.offset + sum(record.size for record in gap.moved))
        free.put(gap)
    if staying:
        end = max(end, live[staying - 1].end)
    return Plan([gap for gap in gaps if gap.offset < end], end)


def _gaps(form: SegmentFormat, live: Sequence[Live]) -> Iterator[Gap]:
    at = len(form.header)
    for record in live:
        if record.offset > at:
            size = record.offset - at
            yield Gap(at, size, form.gap_room(at, size))
        at = record.end


class _FreeGaps:
    """First fit: the first gap that has room. Best fit would fill gaps near the end, where the cut is wanted.

    Gaps are heaps of offsets by the class of their room, eight classes a power of two: a gap of a higher class than the
    record's surely has room, and there are few classes to look at.
    """

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._heaps: dict[int, list[tuple[int, Gap]]] = {}
        for gap in gaps:
            self.put(gap)

    def put(self, gap: Gap) -> None:
        if gap.room:
            heapq.heappush(self._heaps.setdefault(_class(gap.room), []), (gap.offset, gap))

    def take(self, record: Live) -> Gap | None:
        """Remove and return a gap in front of ``record`` that has room for it. Records come from the end of the segment."""
        own, size = _class(record.size), record.size
        heap = self._heaps.get(own)
        while heap and heap[0][1].room < size:  # of the same class, yet too small: one class lower it serves all there
            heapq.heappush(self._heaps.setdefault(own - 1, []), heapq.heappop(heap))
        first: list[tuple[int, Gap]] | None = None
        for room_class, heap in self._heaps.items():
            if room_class >= own and heap and (first is None or heap[0][0] < first[0][0]):
                first = heap
        return heapq.heappop(first)[1] if first and first[0][0] < record.offset else None


def _class(size: int) -> int:
    """Bit length, and the three bits behind the highest."""
    bits = size.bit_length()
    return bits << 3 | size >> max(bits - 4, 0) & 7
