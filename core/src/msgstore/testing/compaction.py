"""Compaction in place: segments with gaps, what a format writes into them, and what a crash may leave of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random

import attrs

from msgstore.contract import CompactableFormat, ScanEnd
from msgstore.contract.formats import Write
from msgstore.testing.faults import SECTOR
from msgstore.testing.probes import numbered
from msgstore.testing.segments import Placed, Row, check_body, check_scan, expected, outcome, rows, written


@attrs.frozen
class Compacted:
    """A segment with gaps between live records, and at its end records that move into them."""

    form: CompactableFormat
    data: bytes
    live: Sequence[Placed]
    """Everything outside the gaps, what is moved included."""
    gaps: Sequence[tuple[int, int, Sequence[Placed]]]
    """(offset, size, records that move there, as they stand now)."""
    before: Sequence[Row] = attrs.field(init=False)
    """All records of ``data``, also dead ones."""

    @before.default
    def _before(self) -> Sequence[Row]:
        return rows(self.form.scan(self.data).records)

    @classmethod
    def of(cls, form: CompactableFormat, first: int | None, gaps: Sequence[Sequence[int]], moved: Sequence[int]) -> Compacted:
        """Return one with bodies of these sizes. Of ``moved`` as many move as have room. ``first``: None if a gap is first."""
        sizes = [*([] if first is None else [first]), *(size for gap in gaps for size in (*gap, 9)), *moved]
        random = Random(len(sizes))
        data, placed = written(
            form, [(i, random.randbytes(size)) for (i, _), size in zip(numbered(len(sizes)), sizes, strict=True)]
        )
        kept, spans = placed[: len(placed) - len(moved)], []
        at = int(first is not None)
        live = kept[:at]
        for gap in gaps:
            spans.append((kept[at].offset, kept[at + len(gap)].offset - kept[at].offset))
            at += len(gap) + 1
            live.append(kept[at - 1])
        return cls._taking(form, data, live, spans, placed[len(kept) :])

    @classmethod
    def _taking(
        cls, form: CompactableFormat, data: bytes, live: Sequence[Placed], spans: Iterable[tuple[int, int]], last: list[Placed]
    ) -> Compacted:
        """``spans``: (offset, size) of each gap. It takes as many of ``last``, the records that move, as have room."""
        found, taken = [], 0
        for begin, size in spans:
            room = form.gap_room(begin, size)
            fits = sum(end <= room for end in accumulate(record.size for record in last[taken:]))
            found.append((begin, size, last[taken : taken + fits]))
            taken += fits
        return cls(form, data, [*live, *last], found)

    def later(self, data: bytes) -> Compacted:
        """The next compaction, of ``data``, which this one gave: the record behind each gap is dead since. So gaps begin with
        what was left over, wherever that is in a sector."""
        moved_to, ends = [], {begin + size for begin, size, _ in self.gaps}
        for at, _, moved in self.gaps:
            begins = accumulate((record.size for record in moved[:-1]), initial=at)
            moved_to += [record._replace(offset=begin) for record, begin in zip(moved, begins, strict=False)]
        live = sorted([*moved_to, *(record for record in self.live if record.offset not in ends)], key=lambda it: it.offset)
        places = [(len(self.form.header), 0), *((record.offset, record.size) for record in live)]
        spans = [(at + size, end - at - size) for (at, size), (end, _) in pairwise(places) if at + size < end]
        last = [record for record in self.live if record.offset > max(ends)]
        return self._taking(self.form, data, [record for record in live if record not in last], spans, last)

    def check_crashes(self, random: Random) -> bytes:
        """Check what may be on disk at any instant: all earlier steps, and any sectors of the running one; then the end. In
        the end the records are in the gaps, too, one behind the other, and the segment can be cut there. Return that."""
        steps: list[list[Write]] = [[], [], []]  # of all gaps together, as a store does them
        for begin, size, moved in self.gaps:
            records = [self.data[record.offset : record.end] for record in moved]
            given = list(records)
            fill = self.form.fill_gap(begin, size, given)
            assert given == records, "fill_gap changes the list that it is given"
            for pieces, writes in zip(steps, (fill.prepare, fill.inside, fill.seal), strict=True):
                for offset, chunk in writes:
                    inside = begin <= offset and offset + len(chunk) <= begin + size
                    assert inside, f"{len(chunk)} bytes at {offset} are not in the gap of {size} bytes at {begin}"
                    pieces += _by_sector(offset, chunk)
        state = self.data
        for step, pieces in zip(("prepare", "inside", "seal"), steps, strict=True):
            torn = f"{step} is torn between {SECTOR}-byte sectors, or between its writes"
            for number in range(len(pieces) + 1):
                self.check(after(state, pieces[:number]), torn)
                self.check(after(state, pieces[number:]), torn)
            for _ in range(3):
                self.check(after(state, [piece for piece in pieces if random.getrandbits(1)]), torn)
            state = after(state, pieces)
        found = self.check(state, "all is written")
        for at, _, moved in self.gaps:
            for record in moved:
                assert (record.msg_id, at, record.size) in found, f"{record.msg_id.hex()} was moved to {at}, and is not there"
                is_same = state[at : at + record.size] == self.data[record.offset : record.end]
                assert is_same, f"{record.msg_id.hex()} has other bytes at {at}: records are moved as they are"
                at += record.size
            for end in (at, len(state)):
                assert self.form.scan(state[:end]).end == ScanEnd("clean", end), f"with {end} bytes, the segment is not clean"
        return state

    def check(self, state: bytes, when: str) -> set[Row]:
        """Every record outside the gaps is found where it is, and of each id the copy that counts is whole."""
        scan = self.form.scan(state)
        check_scan(self.form, state, scan)
        found = {*rows(scan.records), *rows(scan.duplicates)}
        for msg_id, offset, size in self.before:
            if offset in scan.hole_offsets:
                read = outcome(self.form, msg_id, state[offset : offset + size])
                assert isinstance(read, str), f"{when}: a hole begins at {offset}, and decode gives the record that was there"
        lost = [f"{row[0].hex()} at {row[1]}" for row in expected(self.live) if row not in found]
        gaps = ", ".join(f"{size} bytes at {at}, {len(moved)} records moved there" for at, size, moved in self.gaps)
        assert not lost, f"{when}, not found: {', '.join(lost)}; the scan ended at {scan.end}, the gaps are {gaps}"
        bodies = {record.msg_id: record.body for record in self.live}
        for msg_id, offset, size in rows(scan.records):
            if msg_id in bodies:
                found_body = self.form.decode(msg_id, state[offset : offset + size])
                check_body(found_body, bodies[msg_id], f"{when}, the record at {offset}")
        return found


def _by_sector(offset: int, chunk: bytes) -> Iterator[Write]:
    for begin, end in pairwise([0, *range(SECTOR - offset % SECTOR, len(chunk), SECTOR), len(chunk)]):
        yield offset + begin, chunk[begin:end]


def after(state: bytes, writes: Iterable[Write]) -> bytes:
    """Return ``state`` with these writes."""
    changed = bytearray(state)
    for offset, chunk in writes:
        changed[offset : offset + len(chunk)] = chunk
    return bytes(changed)
