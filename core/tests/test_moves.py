"""The plan of a compaction, as a pure function of what is live."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.engine.compact.gc_context import LiveRecords
from msgstore.engine.compact.in_place import plan_moves


class Gaps:
    """A format of which only the rule for gaps matters: any gap of five bytes and more has room."""

    header = b"h" * 64

    def gap_room(self, offset: int, size: int) -> int:
        return size if size >= 5 else 0


def laid_out(pieces: list[tuple[int, int]]) -> LiveRecords:
    """(gap before, size) of each live record, from the header on."""
    at, offsets = 64, []
    for gap, size in pieces:
        offsets.append(at + gap)
        at += gap + size
    return LiveRecords([n.to_bytes(16) for n in range(len(pieces))], offsets, [size for _, size in pieces])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(21, 90)), max_size=80))
def test_plan_moves_records_down_into_first_gap(pieces):
    """As a search through all gaps finds it; nothing overlaps, and what moves is what the cut frees."""
    live = laid_out(pieces)
    plan = plan_moves(Gaps(), live)
    starts = [64, *(offset + size for offset, size in zip(live.offsets, live.sizes, strict=True))]
    gaps = [[start, offset - start] for start, offset in zip(starts, live.offsets, strict=False) if offset - start >= 5]
    expected = {}
    for at in reversed(range(len(live))):
        first = next((gap for gap in gaps if gap[1] >= live.sizes[at]), None)
        end = max((target + live.sizes[moved] for moved, target in expected.items()), default=64)
        if first is None or first[0] >= live.offsets[at] or live.offsets[at] < end:
            break
        expected[at] = first[0]
        first[0], first[1] = first[0] + live.sizes[at], first[1] - live.sizes[at]
    assert plan.places == [expected.get(at, offset) for at, offset in enumerate(live.offsets)]
    assert sorted(at for _, _, moved in plan.gaps for at in moved) == sorted(expected)
    assert all(sum(live.sizes[at] for at in moved) <= size for _, size, moved in plan.gaps)
    after = sorted(zip(plan.places, live.sizes, strict=True))
    assert all(end <= start for end, (start, _) in zip([64, *(o + s for o, s in after)], after, strict=False))
    assert plan.end == max([64, *(o + s for o, s in after)]) <= max(starts)
    assert all(live.offsets[at] >= plan.end for at in expected)


@pytest.mark.parametrize(
    ("pieces", "places", "end"),
    [
        ([], [], 64),
        ([(60, 21), (0, 21), (0, 21)], [124, 85, 64], 145),  # a gap takes several records in a row
        ([(0, 85) if n % 2 else (85, 85) for n in range(1000)], None, 64 + 1000 * 85),  # equal records fill every gap
    ],
)
def test_plan_of_known_segment(pieces, places, end):
    plan = plan_moves(Gaps(), laid_out(pieces))
    assert plan.end == end
    assert places in (None, plan.places)
