"""Plan of a compaction in place: which records move into which gaps, and where the file is then truncated. Pure.

Records from the end of the segment move into the first gap with room, so that the tail becomes free. A segment has up to
about 200,000 records: they are columns of integers, because one object per record would cost more than all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from msgstore.contract import CompactableFormat
from msgstore.locations import pack_locations


@attrs.define
class LiveRecords:
    """Live records of a segment as columns, in order of their offsets."""

    ids: Sequence[bytes]
    offsets: Sequence[int]
    sizes: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, begin: int, end: int) -> LiveRecords:
        """Return the records from position ``begin`` to ``end``."""
        return LiveRecords(self.ids[begin:end], self.offsets[begin:end], self.sizes[begin:end])

    def locations(self, number: int) -> list[int]:
        """Return the packed locations in segment ``number``."""
        return pack_locations(number, self.offsets, self.sizes)

    @property
    def total(self) -> int:
        """Bytes of all records."""
        return sum(self.sizes)


@attrs.define
class Gap:
    """Space between two live records, and the positions of the live records that move into it, in order."""

    offset: int
    size: int
    moved: Sequence[int]


@attrs.define
class CompactionPlan:
    """Result of :func:`plan`."""

    gaps: list[Gap]
    """Gaps before ``end``, in order, with or without moved records."""
    end: int
    """Size of the compacted segment."""

    def moves(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (position, new offset) of each moved record."""
        for gap in self.gaps:
            at = gap.offset
            for position in gap.moved:
                yield position, at
                at += sizes[position]


def plan_moves(form: CompactableFormat, live: LiveRecords) -> CompactionPlan:
    """Return the plan for all live records of a segment. Raises ValueError for an impossible result of ``gap_room``."""
    begin = len(form.header)
    offsets, sizes = live.offsets, live.sizes
    starts = [begin, *map(int.__add__, offsets, sizes)]
    gaps = [(start, offset - start) for start, offset in zip(starts, offsets, strict=False) if offset > start]
    rooms = [form.gap_room(offset, size) for offset, size in gaps]
    wrong = next((at for at, room in enumerate(rooms) if not 0 <= room <= gaps[at][1]), None)
    if wrong is not None:
        raise ValueError(f"a gap of {gaps[wrong][1]} bytes at offset {gaps[wrong][0]} has room for {rooms[wrong]}")
    moved: dict[int, list[int]] = {}
    end = begin  # of the moved records: the file is not truncated before it, so earlier records stay
    free = _FirstFit(rooms)
    gap, room, last = -1, 0, 0
    left: list[
        tuple[int, int]
    ] = []  # (gap, room) that ``free`` does not know yet: gaps that were filled since the size changed
    staying = len(live)
    while staying and offsets[staying - 1] >= end:
        size = sizes[staying - 1]
        if size != last or size > room:  # or the same gap is still the first with room
            if gap >= 0:
                left.append((gap, room))
            gap = free.next(gap, size) if size == last else -1  # in front of the last gap for this size there is none
            if gap < 0:
                for filled, rest in left:
                    free.set(filled, rest)
                left.clear()
                gap = free.first(size)
            if gap < 0:
                break
            room, last = free.room(gap), size
        if gaps[gap][0] >= offsets[staying - 1]:
            break
        staying -= 1
        moved.setdefault(gap, []).append(staying)
        room -= size
        end = max(end, gaps[gap][0] + rooms[gap] - room)
    if staying:
        end = max(end, starts[staying])
    nothing: tuple[int, ...] = ()
    return CompactionPlan([Gap(*gaps[at], moved.get(at, nothing)) for at in range(len(gaps)) if gaps[at][0] < end], end)


_NEAR = 4
"""Gaps that are checked one by one: records of one size fill one gap after the other."""


class _FirstFit:
    """First fit: the first gap that has room. Best fit would fill gaps near the end, where the cut is wanted.

    A tree of maxima over the rooms, its root at 1, those below ``n`` at ``2n`` and ``2n + 1``: some 15 steps for each question.
    """

    def __init__(self, rooms: Sequence[int]) -> None:
        self._leaves = 1 << max(len(rooms) - 1, 0).bit_length()
        levels = [[*rooms, *[0] * (self._leaves - len(rooms))]]
        while len(levels[-1]) > 1:
            levels.append(list(map(max, levels[-1][::2], levels[-1][1::2])))
        self._tree = [0, *(room for level in reversed(levels) for room in level)]

    def first(self, size: int) -> int:
        """Return the first gap with room for ``size`` bytes; -1 if there is none."""
        tree, leaves, at = self._tree, self._leaves, 1
        if tree[1] < size:
            return -1
        while at < leaves:
            at *= 2
            if tree[at] < size:
                at += 1
        return at - leaves

    def next(self, gap: int, size: int) -> int:
        """Return the first gap after ``gap`` with room for ``size`` bytes, if it is one of the next few; else -1."""
        begin = self._leaves + gap + 1
        for at, room in enumerate(self._tree[begin : begin + _NEAR], gap + 1):
            if room >= size:
                return at
        return -1

    def room(self, gap: int) -> int:
        """Return the room of a gap in bytes."""
        return self._tree[self._leaves + gap]

    def set(self, gap: int, room: int) -> None:
        """Set the room of a gap."""
        tree, at = self._tree, self._leaves + gap
        tree[at] = room
        while at > 1:
            at //= 2
            left, right = tree[2 * at], tree[2 * at + 1]
            larger = max(right, left)
            if tree[at] == larger:
                return
            tree[at] = larger
