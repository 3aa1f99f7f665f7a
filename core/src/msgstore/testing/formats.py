"""Tests of every segment format: damage that hides records, hostile files, and compaction in place.

Those of written segments, which record types have to pass, too, are in :class:`msgstore.testing.records.RoundTripTests`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from msgstore.contract import BoundRecord, Capability, FormatContext, GapFill, RecordContext, SegmentFormat
from msgstore.scan.formats import OWN_RECORD
from msgstore.testing.compaction import Compacted
from msgstore.testing.faults import SECTOR
from msgstore.testing.golden import described, golden
from msgstore.testing.plugin import skip_without
from msgstore.testing.probes import clock_at, is_linear, numbered, peak_of, texts, tried, within
from msgstore.testing.records import BESIDE, RoundTripTests
from msgstore.testing.segments import (
    check_anything,
    check_scan,
    expected,
    made,
    salvaged,
    written,
)
from msgstore.testing.subjects import Subject

MULTIPLE = 16
"""Memory limit of a scan, as a multiple of the size of the segment, beside ``BESIDE``."""
SIZE = 60_000
"""Bytes of the smaller inputs that are timed; the larger inputs have four times as many."""


def _records(form: SegmentFormat, count: int, body: bytes = b"") -> bytes:
    return written(form, numbered(count, body), after=b"")[0]


class _Sparse(bytes):
    """A segment with a part that is a hole."""

    holes: tuple[int, int]

    def stored_parts(self, start: int) -> Iterator[tuple[int, int]]:
        begin, end = self.holes
        return ((max(start, at), stop) for at, stop in ((0, begin), (end, len(self))) if start < stop)


def _filled(form: Any) -> bytes:
    """Return records and gaps that are filled, with 1 to 8 bytes left over in each."""
    segment = Compacted.of(form, 0, [[4 + left] for left in range(1, 9)], [4] * 8)
    return segment.check_crashes(Random(0))[len(form.header) :]


def _nested(form: SegmentFormat, size: int) -> bytes:
    record = _records(form, 1)
    while len(record) < size:
        record = _records(form, 1, record)
    return record


HOSTILE: dict[str, Callable[[SegmentFormat, int], bytes]] = {
    "zeros": lambda *_: b"\0",
    "ones": lambda *_: b"\1",
    "high bytes": lambda *_: b"\xff",
    "noise": lambda _, size: Random(size).randbytes(size),
    "smallest records": lambda form, size: _records(form, max(size // len(_records(form, 1)), 1)),
    "records of one id": lambda form, _: _records(form, 1),
    "heads of large records": lambda form, size: _records(form, 1, bytes(size // 2))[:24],
    "half heads": lambda form, _: _records(form, 1)[:3],
    "records in records": lambda form, size: _nested(form, size + 1),
    "chains that break": lambda form, _: _records(form, 9)[:-1],
    "records that are cut off": lambda form, _: _records(form, 1, b"x" * 60)[:40],
    "gaps that are filled": lambda form, _: _filled(form),
}


def _hostile(form: SegmentFormat, kind: str, size: int) -> bytes:
    """Return what fills a segment of ``size`` bytes, as often as it fits, and is cut off at its end."""
    piece = HOSTILE[kind](form, size)
    return form.header + (piece * (size // len(piece) + 1))[:size]


_spots = st.binary(min_size=1, max_size=40) | st.integers(1, 40).map(bytes) | st.integers(1, 40).map(lambda n: b"\xff" * n)
_sizes = st.integers(0, 60) | st.integers(400, 700)


class SegmentFormatTests(RoundTripTests):
    kinds = ("format",)

    def test_a_time_in_records(self, subject: Subject) -> None:
        """A failure means that records keep the time at which they were written, and the format does not claim VERBATIM: a
        salvage then gives them another time. Chance, as in a nonce, needs no VERBATIM."""
        encoded = []
        for now in (1_700_000_000, 1_700_000_000, 1_800_000_000):
            with clock_at(now):
                encoded.append(made(subject).encode([bytes(16)], [b"body"])[0])
        keeps_time = encoded[0] == encoded[1] != encoded[2]
        assert subject.has(Capability.VERBATIM) or not keeps_time, "records differ with the clock, and VERBATIM is not claimed"

    def test_chains_of_a_length(self, form: SegmentFormat) -> None:
        """A failure means that ``find_chain`` looks for another number of records than ``length``: a salvage then takes noise
        for records, or misses those between two damaged spans."""
        data, placed = written(form, numbered(6, b"body"))
        begin, broken = len(form.header), data[:-1] + b"\xff" * 40
        if form.find_chain(data, begin) is not None:
            assert form.find_chain(broken, begin, 5) == begin, "five records are no chain of five"
            assert form.find_chain(data[: placed[5].offset + 3], begin, 6) != begin, "five records are a chain of six"

    def test_a_sparse_file(self, form: SegmentFormat) -> None:
        """A failure means that a record whose body has a hole of a sparse file is not found: ``stored_parts`` of the buffer
        says what the file system has stored, and a record may reach over several parts."""
        data, (first, *_) = written(form, numbered(1, bytes(min(form.max_body, 2**20))), numbered(9, b"behind")[1:])
        sparse = _Sparse(data)
        sparse.holes = first.offset + 4096, first.end - 4096
        assert form.scan(sparse) == form.scan(data)
        for start in (first.offset, first.offset + 1, sum(sparse.holes) // 2, first.end - 10):
            assert form.find_chain(sparse, start) == form.find_chain(data, start), f"find_chain from {start}"

    def test_bound_record_types(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that ``max_body`` does not depend on the size of the record type of new messages, or that a scan with
        a codec does not call the ``check`` of a record type, or does not report what it finds; or that the codec is not asked
        for the bodies of each record type."""
        subject.needs(Capability.TYPED_RECORDS)
        records: list[Any] = [it.descriptor for it in subject.catalogue.registrations if it.kind == "record"]
        own = min((it for it in records if it.name == OWN_RECORD), key=lambda it: it.format != subject.name)

        def bound(**changes: object) -> Any:
            record = subject.catalogue.make(own, RecordContext(own.options(), 200))
            members = {name: getattr(record, name) for name in ("overhead", "encode", "decode", "check", "body_span")}
            records = (BoundRecord("bound", 200, SimpleNamespace(**members | changes)),)
            return subject.make(FormatContext(subject.made_options, records, "bound"))

        wide = bound(overhead=len(form.encode([bytes(16)], [b""])[0]) + 1000)
        assert wide.max_body == form.max_body - 1000, "max_body does not become less with records that take more"
        damaged = bound(check=lambda *_: "damaged")
        data, _ = written(damaged, numbered(3, b"body"))
        for scan in (damaged.scan(data), damaged.scan(data, check_body=lambda *_: True)):
            assert [spot.reason for spot in scan.damage] == ["damaged"] * 3
        scan = bound().scan(data, check_body=lambda *_: False)
        first = [*scan.damage, scan.end][0]
        is_refused = (first.offset, first.reason) == (len(form.header), "invalid_message_body")
        assert is_refused, f"a codec refuses the bodies of another record type, and the first that a scan reports is {first}"

    def test_types_and_a_wrong_header(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that ``types`` is 0, which is no type, for a record of a format that claims TYPED_RECORDS, or another
        value for a format that does not. Or that a scan calls the header of another format ``ok``."""
        data, _ = written(form, numbered(5, b"body"))
        (kind,) = set(form.scan(data).records.types)
        assert (kind != 0) == subject.has(Capability.TYPED_RECORDS), f"the type is {kind}"
        if form.header:
            wrong = bytes(byte ^ 0xFF for byte in form.header) + data[len(form.header) :]
            check_scan(form, wrong, form.scan(wrong))
            assert form.scan(wrong).header not in (None, "ok")

    @tried(60)
    @given(before=st.integers(1, 4), spot=_spots, overwritten=st.booleans(), body=texts, length=st.integers(1, 10))
    def test_records_behind_a_corrupt_spot(
        self, form: SegmentFormat, before: int, spot: bytes, overwritten: bool, body: bytes, length: int
    ) -> None:
        """A failure means that salvage loses every record behind the first damaged one: either ``scan`` goes on by itself, and
        ``find_chain`` always answers None, or ``find_chain`` finds where records begin again. It must not pass over records to
        find more that hold, find some where there are none, or look before ``start``."""
        data, placed = written(form, numbered(before + 31, body))
        if form.find_chain(data, len(form.header), length) is not None:
            for at, later in pairwise([*(record.offset for record in placed), None]):
                assert at is not None
                found, behind = (form.find_chain(data, start, length) for start in (at, at + 1))
                assert found == at, f"a record begins at {at}, and find_chain from there on gives {found}"
                is_right = behind is None if later is None else behind is not None and at < behind <= later
                assert is_right, f"the record behind {at} begins at {later}, and find_chain from {at + 1} on gives {behind}"
            assert form.find_chain(data, 0, length) == len(form.header), "find_chain from 0 on does not find the first record"
            assert form.find_chain(data, len(data), length) is form.find_chain(data, len(data) + 1, length) is None
        at = placed[before].offset
        if overwritten:  # the head of a record
            data = data[:at] + (spot * 20)[:20] + data[at + 20 :]
        else:  # something between two records
            data = data[:at] + spot + data[at:]
            placed[before:] = [record._replace(offset=record.offset + len(spot)) for record in placed[before:]]
        with within():
            salvage = salvaged(form, data)
        phantoms = salvage - set(expected(placed))
        assume(not any(offset + size > placed[-8].offset for _, offset, size in phantoms))
        assert set(expected(placed[:before])) <= salvage, "records before the spot are lost"
        # Beside them a wrong size may swallow what comes next.
        assert set(expected(placed[-8:])) <= salvage, "records behind the spot are lost"

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_hostile_segments(self, subject: Subject, form: SegmentFormat, kind: str) -> None:
        """A failure means that hostile files can stop a reader: the time of ``scan`` or ``find_chain`` grows faster than the
        file, or their memory is a large multiple of its size. Gaps that a compaction has filled are no hostile ones."""
        if kind == "gaps that are filled":
            subject.needs(Capability.COMPACTABLE)
        data = _hostile(form, kind, 4 * SIZE)
        calls: list[Callable[[bytes], object]] = [form.scan, partial(form.find_chain, start=0)]
        with within():
            for call in calls:
                size = SIZE * {"smallest records": 10, "gaps that are filled": 10}.get(kind, 1)  # copies of the rest take long
                assert is_linear(lambda size: partial(call, _hostile(form, kind, size)), size), f"the time of {call}"  # noqa: B023
                assert peak_of(partial(call, data)) <= MULTIPLE * len(data) + BESIDE, f"the memory of {call}"
            check_anything(form, data, len(form.header))

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
        filled again, with what the first compaction has left over in it, or behind what that has moved there. Only for formats
        that claim COMPACTABLE."""
        subject.needs(Capability.COMPACTABLE)
        segment = Compacted.of(made(subject), first, gaps, moved)
        filled = segment.check_crashes(Random(seed))
        again = [(offset, size, taken[1:]) for offset, size, taken in segment.gaps]
        attrs.evolve(segment, data=filled, gaps=again).check_crashes(Random(seed))
        segment.later(filled).check_crashes(Random(seed))

    def test_gaps_of_any_size_and_place(self, subject: Subject, form: Any) -> None:
        """A failure means that a gap of some size, or at some place in a sector, is left with bytes that end the scan: what is
        left over behind the moved records may be a single byte. ``gap_room`` may be 0 where nothing can be done. Or that it
        promises more than there is, also for a gap of some GiB, or that no gap ever has room, so that nothing is compacted."""
        subject.needs(Capability.COMPACTABLE)
        begin = len(form.header)
        for size in (1, 2, 5, 20, 100, 1000):
            rooms = [form.gap_room(offset, size) for offset in range(begin, begin + SECTOR)]
            assert all(0 <= room <= size for room in rooms), f"a gap of {size} bytes promises {max(rooms)}"
        assert sum(room > 0 for room in rooms) >= SECTOR // 2, "less than half of the gaps of 1000 bytes have any room"
        record, (whole,) = form.encode([bytes(16)], [b"body"])

        def writes(size: int) -> list[tuple[int, bytes]]:
            fill = form.fill_gap(begin, size, [record]) if form.gap_room(begin, size) >= whole else GapFill()
            return [*fill.prepare, *fill.inside, *fill.seal]

        is_short = sum(len(chunk) for _, chunk in writes(2**20)) < 2**16  # it does not write the whole gap
        for size in (2**bits + more for bits in (31, 32, 33) for more in (-1, 0, 5, whole, whole + 5)):
            assert 0 <= form.gap_room(begin, size) <= size, f"a gap of {size} bytes promises {form.gap_room(begin, size)}"
            state = form.header
            for at, chunk in writes(size) if is_short else ():
                if begin <= at <= len(state):  # the segment is cut behind what is written up to here
                    state = state[:at] + chunk + state[at + len(chunk) :]
                    assert form.scan(state).end.state != "clean", f"a gap of {size} bytes looks like a short one"
        smallest = len(_records(form, 1))
        for at in (0, 100, 256, *range(SECTOR - 24, SECTOR)):
            # of two records: none of its bytes has the size of the gap by chance, so that half of a hole's head is noticed
            Compacted.of(form, (at - begin - smallest) % SECTOR, [[4, 300]], [4]).check_crashes(Random(at))
            # Two records fill the gap, or leave a byte, or the gap is before the first live record.
            for left in (0, 1):
                Compacted.of(form, (at - begin - smallest) % SECTOR, [[4 + left, 7]], [4, 7]).check_crashes(Random(left))
            for left in range(30):
                Compacted.of(form, (at - begin - smallest) % SECTOR, [[left + 4]], [4]).check_crashes(Random(left))
        for at in range(SECTOR - 64, SECTOR - 24):  # for what is longer at the begin of a gap
            Compacted.of(form, (at - begin - smallest) % SECTOR, [[4, 300]], [4]).check_crashes(Random(at))
        for at in range(SECTOR - 32, SECTOR):  # what is left over, with which the next gap begins
            for left in (1, 4, 9):
                segment = Compacted.of(form, (at - begin - 2 * smallest - 4) % SECTOR, [[4 + left]], [4, 4])
                segment.later(segment.check_crashes(Random(left))).check_crashes(Random(left))
        for dead in ([4], [4, 300], [300, 4]):
            Compacted.of(form, None, [dead, [4]], [4, 4]).check_crashes(Random(0))
        for size in (2**bits + more for bits in (7, 8, 14, 16) for more in (-1, 0, 1)):
            for body in (size - smallest, size, size + 4):  # the gap, a body in it, or what is left over has this size
                Compacted.of(form, 0, [[max(body, 0)]], [4]).check_crashes(Random(0))

    def test_damaged_holes(self, subject: Subject, form: Any) -> None:
        """A failure means that a scan hangs, or gives nonsense, where the head of a hole is damaged: its size is zero, or
        reaches behind the end of the file. Each step of a scan advances."""
        subject.needs(Capability.COMPACTABLE)
        state = Compacted.of(form, 4, [[300, 300]], [4]).check_crashes(Random(0))
        for hole in form.scan(state).hole_offsets:
            for at, size, filler in itertools.product(range(hole, hole + 32), (1, 2, 4, 8), (b"\0", b"\xff")):
                damaged = (state[:at] + filler * size + state[at + size :])[: len(state)]
                with within():
                    check_scan(form, damaged, form.scan(damaged))
                    form.find_chain(damaged, at)

    def test_golden_segments(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that this version reads segments differently from the version that made the corpus: users would lose
        stored messages, or read wrong ones. If the corpus itself is wrong, write its JSON again."""
        segments = list(golden(subject))
        if not segments:
            skip_without("golden corpus")
        for segment, description in segments:
            data = segment.read_bytes()
            check_scan(form, data, form.scan(data))
            found, wanted = described(form, subject.descriptor.fields, data), json.loads(description.read_text())
            for key in sorted(found.keys() | wanted.keys()):
                assert found.get(key) == wanted.get(key), f"{segment.name}: {key} is not read as the corpus says"
