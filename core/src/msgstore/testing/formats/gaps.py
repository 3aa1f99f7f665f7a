"""Compaction in place, as a segment format takes part in it: what may be found between any two writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random

import attrs
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import Capability, CompactableFormat, ScanEnd
from msgstore.contract.formats import Write
from msgstore.testing.data import numbered, tried
from msgstore.testing.faults import SECTOR
from msgstore.testing.formats.segments import Placed, Row, check_body, check_scan, expected, made, rows, written
from msgstore.testing.guard import KitTests
from msgstore.testing.subjects import Subject

_sizes = st.one_of(st.integers(0, 60), st.integers(400, 700))


class GapTests(KitTests):
    """For formats that claim COMPACTABLE: the segments of others are not changed in place."""

    @tried(60)
    @given(
        first=_sizes,
        gaps=st.lists(st.lists(_sizes, min_size=1, max_size=3), min_size=1, max_size=3),
        moved=st.lists(_sizes, max_size=5),
        seed=st.integers(0, 2**32),
    )
    def test_a_crash_while_gaps_are_filled(
        self, subject: Subject, first: int, gaps: list[list[int]], moved: list[int], seed: int
    ) -> None:
        """A failure means that a crash during a compaction costs messages. After and inside each of the three steps, whichever
        of its sectors have reached the disk, a scan finds each record outside the gaps; ``inside`` must be hidden until
        ``seal``, and what must not be torn must lie within one sector. A gap is everything between two live records: it is
        filled again, with what the first compaction has left over in it."""
        subject.needs(Capability.COMPACTABLE)
        segment = Compacted.of(made(subject), first, gaps, moved)
        filled = segment.check_crashes(Random(seed))
        again = [(offset, size, taken[1:]) for offset, size, taken in segment.gaps]
        attrs.evolve(segment, data=filled, gaps=again).check_crashes(Random(seed))

    def test_gaps_of_any_size_and_place(self, subject: Subject) -> None:
        """A failure means that a gap of some size, or at some place in a sector, is left with bytes that end the scan: what is
        left over behind the moved records may be a single byte. ``gap_room`` may be 0 where nothing can be done. Or that it
        promises more than there is, or that no gap ever has room, so that nothing is compacted."""
        subject.needs(Capability.COMPACTABLE)
        form = made(subject)
        begin = len(form.header)
        for size in (1, 2, 5, 20, 100, 1000):
            rooms = [form.gap_room(offset, size) for offset in range(begin, begin + SECTOR)]
            assert all(0 <= room <= size for room in rooms), f"a gap of {size} bytes promises {max(rooms)}"
        assert sum(room > 0 for room in rooms) >= SECTOR // 2, "less than half of the gaps of 1000 bytes have any room"
        _, (smallest,) = written(form, numbered(1))
        for at in (0, 100, 256, *range(SECTOR - 24, SECTOR)):
            for left in range(30):
                Compacted.of(form, (at - begin - smallest.size) % SECTOR, [[left + 4]], [4]).check_crashes(Random(left))


@attrs.frozen
class Compacted:
    """A segment with gaps between live records, and at its end records that move into them."""

    form: CompactableFormat
    data: bytes
    live: Sequence[Placed]
    """Everything outside the gaps, what is moved included."""
    gaps: Sequence[tuple[int, int, Sequence[Placed]]]
    """(offset, size, records that move there, as they stand now)."""

    @classmethod
    def of(cls, form: CompactableFormat, first: int, gaps: Sequence[Sequence[int]], moved: Sequence[int]) -> Compacted:
        """With bodies of these sizes; of ``moved`` is moved what there is room for."""
        sizes = [first, *(size for gap in gaps for size in (*gap, 9)), *moved]
        random = Random(len(sizes))
        data, placed = written(
            form, [(i, random.randbytes(size)) for (i, _), size in zip(numbered(len(sizes)), sizes, strict=True)]
        )
        live, waiting, found, at = [placed[0]], placed[len(placed) - len(moved) :], [], 1
        taken = 0
        for gap in gaps:
            dead, at = placed[at : at + len(gap)], at + len(gap) + 1
            live.append(placed[at - 1])
            begin, size = dead[0].offset, dead[-1].end - dead[0].offset
            room = form.gap_room(begin, size)
            fits = sum(end <= room for end in accumulate(record.size for record in waiting[taken:]))
            found.append((begin, size, waiting[taken : taken + fits]))
            taken += fits
        return cls(form, data, live + waiting, found)

    def steps(self) -> list[list[Write]]:
        """The writes of all gaps together, step by step, as a store does them."""
        steps: list[list[Write]] = [[], [], []]
        for begin, size, moved in self.gaps:
            fill = self.form.fill_gap(begin, size, [self.data[record.offset : record.end] for record in moved])
            for step, writes in zip(steps, (fill.prepare, fill.inside, fill.seal), strict=True):
                for offset, chunk in writes:
                    inside = begin <= offset and offset + len(chunk) <= begin + size
                    assert inside, f"{len(chunk)} bytes at {offset} are not in the gap of {size} bytes at {begin}"
                step += writes
        return steps

    def check_crashes(self, random: Random) -> bytes:
        """Check what may be on disk at any instant: all earlier steps, and any sectors of the running one; then the end. In
        the end the records are in the gaps, too, one behind the other, and the segment can be cut there. Return that."""
        state = self.data
        for step in self.steps():
            pieces = list(_by_sector(step))
            for number in range(len(pieces) + 1):
                self.check(_after(state, pieces[:number]))
                self.check(_after(state, pieces[number:]))
            for _ in range(3):
                self.check(_after(state, [piece for piece in pieces if random.getrandbits(1)]))
            state = _after(state, pieces)
        found = self.check(state)
        for at, _, moved in self.gaps:
            for record in moved:
                assert (record.msg_id, at, record.size) in found, f"{record.msg_id.hex()} was moved to {at}, and is not there"
                at += record.size
            for end in (at, len(state)):
                assert self.form.scan(state[:end]).end == ScanEnd("clean", end), f"with {end} bytes, the segment is not clean"
        return state

    def check(self, state: bytes) -> set[Row]:
        """Every record outside the gaps is found where it is, and of each id the copy that counts is whole."""
        scan = self.form.scan(state)
        check_scan(self.form, state, scan)
        found = {*rows(scan.records), *rows(scan.duplicates)}
        lost = [f"{row[0].hex()} at {row[1]}" for row in expected(self.live) if row not in found]
        gaps = ", ".join(f"{size} bytes at {at}, {len(moved)} records moved there" for at, size, moved in self.gaps)
        assert not lost, f"not found: {', '.join(lost)}; the scan ended at {scan.end}, the gaps are {gaps}"
        bodies = {record.msg_id: record.body for record in self.live}
        for msg_id, offset, size in rows(scan.records):
            if msg_id in bodies:
                check_body(self.form.decode(msg_id, state[offset : offset + size]), bodies[msg_id], f"the record at {offset}")
        return found


def _by_sector(writes: Iterable[Write]) -> Iterator[Write]:
    for offset, chunk in writes:
        cuts = [0, *range(SECTOR - offset % SECTOR, len(chunk), SECTOR), len(chunk)]
        for begin, end in pairwise(cuts):
            yield offset + begin, chunk[begin:end]


def _after(state: bytes, writes: Iterable[Write]) -> bytes:
    changed = bytearray(state)
    for offset, chunk in writes:
        changed[offset : offset + len(chunk)] = chunk
    return bytes(changed)
