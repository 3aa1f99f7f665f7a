"""The plan of a compaction, as a pure function of what is live."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from msgstore.engine.moves import Live, plan


class Gaps:
    """A format of which only the rule for gaps matters: any gap of five bytes and more has room."""

    header = b"h" * 64

    def gap_room(self, offset: int, size: int) -> int:
        return size if size >= 5 else 0


records = st.lists(st.tuples(st.integers(0, 60), st.integers(21, 90)), max_size=80)


def laid_out(pieces: list[tuple[int, int]]) -> list[Live]:
    """(gap before, size) of each live record, from the header on."""
    live, at = [], 64
    for n, (gap, size) in enumerate(pieces):
        live.append(Live(at + gap, size, n.to_bytes(16)))
        at += gap + size
    return live


@given(records)
def test_a_plan_moves_records_down_into_gaps_without_overlap(pieces):
    live = laid_out(pieces)
    todo = plan(Gaps(), live)
    moved = {record: target for gap in todo.gaps for record, target in gap.targets()}
    after = sorted((moved.get(record, record.offset), record.size) for record in live)
    assert all(target < record.offset for record, target in moved.items())
    assert all(end <= start for end, (start, _) in zip([64, *(o + s for o, s in after)], after, strict=False))
    assert todo.end == max([64, *(o + s for o, s in after)])
    assert todo.end <= max([64, *(record.end for record in live)])
    assert all(sum(record.size for record in gap.moved) <= gap.size for gap in todo.gaps)
    assert all(record.offset >= todo.end for record in moved), "what moves is what the cut frees"


@given(records)
def test_only_the_end_moves(pieces):
    live = laid_out(pieces)
    moved = {record for gap in plan(Gaps(), live).gaps for record in gap.moved}
    assert moved == set(live[len(live) - len(moved) :])


def test_equal_records_fill_every_gap():
    live = laid_out([(0, 85) if n % 2 else (85, 85) for n in range(1000)])
    assert plan(Gaps(), live).end == 64 + 1000 * 85


def test_nothing_live_leaves_the_header():
    assert plan(Gaps(), []).end == 64
