"""The plan of a compaction, as a pure function of what is live."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.engine.compact.compaction_plan import LiveRecords, plan_moves


class Gaps:
    """A format of which only the rule for gaps matters: any gap of five bytes and more has room."""

    header = b"h" * 64

    def gap_room(self, offset: int, size: int) -> int:
        return size if size >= 5 else 0


records = st.lists(st.tuples(st.integers(0, 60), st.integers(21, 90)), max_size=80)


def laid_out(pieces: list[tuple[int, int]]) -> LiveRecords:
    """(gap before, size) of each live record, from the header on."""
    at, offsets = 64, []
    for gap, size in pieces:
        offsets.append(at + gap)
        at += gap + size
    return LiveRecords([n.to_bytes(16) for n in range(len(pieces))], offsets, [size for _, size in pieces])


@given(records)
def test_plan_moves_records_down_without_overlap(pieces):
    live = laid_out(pieces)
    todo = plan_moves(Gaps(), live)
    moved = dict(todo.moves(live.sizes))
    after = sorted((moved.get(at, live.offsets[at]), live.sizes[at]) for at in range(len(live)))
    assert all(target < live.offsets[at] for at, target in moved.items())
    assert all(end <= start for end, (start, _) in zip([64, *(o + s for o, s in after)], after, strict=False))
    assert todo.end == max([64, *(o + s for o, s in after)])
    assert todo.end <= max([64, *(offset + size for offset, size in zip(live.offsets, live.sizes, strict=True))])
    assert all(sum(live.sizes[at] for at in gap.moved) <= gap.size for gap in todo.gaps)
    assert all(live.offsets[at] >= todo.end for at in moved), "what moves is what the cut frees"


@given(records)
def test_plan_uses_first_gap_with_room(pieces):
    """As a search through all gaps finds it. Only the end moves."""
    live = laid_out(pieces)
    todo = plan_moves(Gaps(), live)
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
    assert dict(todo.moves(live.sizes)) == expected


@pytest.mark.parametrize(
    ("pieces", "moves", "end"),
    [
        ([], {}, 64),
        ([(60, 21), (0, 21), (0, 21)], {2: 64, 1: 85}, 145),  # a gap takes several records in a row
        ([(0, 85) if n % 2 else (85, 85) for n in range(1000)], None, 64 + 1000 * 85),  # equal records fill every gap
    ],
)
def test_plan_of_known_segment(pieces, moves, end):
    live = laid_out(pieces)
    todo = plan_moves(Gaps(), live)
    assert todo.end == end
    assert moves is None or dict(todo.moves(live.sizes)) == moves
