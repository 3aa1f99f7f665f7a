"""Plan of a compaction in place: which records move into which gaps, and where the file is then truncated. Pure.

Records from the end of the segment move into the first gap with room, so that the tail becomes free. Best fit would fill gaps
near the end, where the cut is wanted. A segment has up to about 200,000 records: they are columns of integers, because one
object per record would cost more than all the rest.
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


@attrs.define
class Gap:
    """Space between two live records, and the positions of the live records that move into it, in order."""

    offset: int
    size: int
    moved: Sequence[int]


@attrs.define
class CompactionPlan:
    """Result of :func:`plan_moves`."""

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
    for (offset, size), room in zip(gaps, rooms, strict=True):
        if not 0 <= room <= size:
            raise ValueError(f"a gap of {size} bytes at offset {offset} has room for {room}")
    moved: dict[int, list[int]] = {}
    end = begin  # of the moved records: the file is not truncated before it, so earlier records stay
    take = _FirstFit(rooms).take
    staying = len(live)
    while staying and offsets[staying - 1] >= end:
        gap, room = take(sizes[staying - 1])
        if gap < 0 or gaps[gap][0] >= offsets[staying - 1]:
            break
        staying -= 1
        moved.setdefault(gap, []).append(staying)
        end = max(end, gaps[gap][0] + rooms[gap] - room)
    if staying:
        end = max(end, starts[staying])
    return CompactionPlan([Gap(*gap, moved.get(at, ())) for at, gap in enumerate(gaps) if gap[0] < end], end)


class _FirstFit:
    """Tree of maxima over the rooms, its root at 1, those below ``n`` at ``2n`` and ``2n + 1``: some 15 steps per record."""

    def __init__(self, rooms: Sequence[int]) -> None:
        self._leaves = 1 << max(len(rooms) - 1, 0).bit_length()
        levels = [[*rooms, *[0] * (self._leaves - len(rooms))]]
        while len(levels[-1]) > 1:
            levels.append(list(map(max, levels[-1][::2], levels[-1][1::2])))
        self._tree = [0, *(room for level in reversed(levels) for room in level)]

    def take(self, size: int) -> tuple[int, int]:
        """Take ``size`` bytes of the first gap that has them. Return the gap, or -1, and the room that is left."""
        tree, leaves, at = self._tree, self._leaves, 1
        if tree[1] < size:
            return -1, 0
        while at < leaves:
            at *= 2
            if tree[at] < size:
                at += 1
        gap, room = at - leaves, tree[at] - size
        tree[at] = room
        while at > 1:
            larger = max(tree[at], tree[at ^ 1])
            at //= 2
            if tree[at] == larger:
                break
            tree[at] = larger
        return gap, room
