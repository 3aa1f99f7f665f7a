"""Tests of every segment format: written segments, damage, and compaction in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from msgstore.contract import Capability, ScanEnd, SegmentFormat
from msgstore.testing.data import Batch, batches, is_linear, numbered, peak_of, texts, tried, within
from msgstore.testing.formats.gaps import GapTests
from msgstore.testing.formats.roundtrip import RoundTripTests, check_anything
from msgstore.testing.formats.segments import Row, check_records, check_scan, encoded, expected, made, rows, written
from msgstore.testing.golden import described, difference, golden
from msgstore.testing.guard import skip_without
from msgstore.testing.subjects import Subject

MULTIPLE, BESIDE = 16, 2 * 2**20
"""Memory limit of a scan: a multiple of the size of the segment, and a constant number of bytes."""
SIZE = 60_000
"""Bytes of the smaller inputs that are timed; the larger inputs have four times as many."""


def _filled(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece) + 1)


def _records(form: SegmentFormat, count: int, body: bytes = b"") -> bytes:
    return encoded(form, numbered(count, body), 0)[0]


def _smallest(form: SegmentFormat, size: int) -> bytes:
    return _records(form, size // len(_records(form, 1)))


def _one_id(form: SegmentFormat, size: int) -> bytes:
    return encoded(form, [(bytes(16), b"")] * (size // len(_records(form, 1))), 0)[0]


def _nested(form: SegmentFormat, size: int) -> bytes:
    record = _records(form, 1)
    while len(record) < size:
        record = _records(form, 1, record)
    return record


HOSTILE: dict[str, Callable[[SegmentFormat, int], bytes]] = {
    "zeros": lambda _, size: bytes(size),
    "ones": lambda _, size: b"\1" * size,
    "high bytes": lambda _, size: b"\xff" * size,
    "noise": lambda _, size: Random(size).randbytes(size),
    "smallest records": _smallest,
    "smallest records, cut off": lambda form, size: _smallest(form, size)[:-1],
    "records of one id": _one_id,
    "heads of large records": lambda form, size: _filled(_records(form, 1, bytes(size // 2))[:24], size),
    "half heads": lambda form, size: _filled(_records(form, 1)[:3], size),
    "records in records": _nested,
    "records in records, cut off": lambda form, size: _nested(form, size)[: size // 2],
    "chains that break": lambda form, size: _filled(_records(form, 9)[:-1], size),
    "records that are cut off": lambda form, size: _filled(_records(form, 1, b"x" * 60)[:40], size),
}
"""Name to a function that makes a segment of about ``size`` bytes, without its header."""
_spots = st.binary(min_size=1, max_size=40) | st.integers(1, 40).map(bytes) | st.integers(1, 40).map(lambda n: b"\xff" * n)


class SegmentFormatTests(RoundTripTests, GapTests):
    kinds = ("format",)

    def make_form(self, subject: Subject) -> Any:
        return made(subject)

    def test_types_are_told_where_there_are_some(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that ``types`` is 0, which is no type, for a record of a format that claims TYPED_RECORDS, or another
        value for a format that does not."""
        kinds = set(form.scan(written(form, numbered(5, b"body"))[0]).records.types)
        assert len(kinds) == 1
        assert (kinds != {0}) == subject.has(Capability.TYPED_RECORDS)

    @tried(15)
    @given(messages=batches(texts, least=1, most=5))
    def test_a_write_that_is_cut_off(self, form: SegmentFormat, messages: Batch) -> None:
        """A failure means that a crash inside a write loses whole records, that half a record is taken for a record, or that
        recovery cannot tell a torn write from damage: the end is ``torn``, at the beginning of the record that is cut off."""
        data, placed = written(form, messages)
        ends = [len(form.header), *(record.end for record in placed)]
        for whole, (begin, end) in enumerate(pairwise(ends)):
            for cut in range(begin, end):
                scan = form.scan(data[:cut])
                check_scan(form, data[:cut], scan)
                check_records(form, data, scan.records, placed[:whole])
                if cut == begin:
                    assert scan.end == ScanEnd("clean", begin)
                elif data[begin:cut].strip(b"\0"):  # zeros may as well be a hole
                    assert scan.end == ScanEnd("torn", begin, scan.end.reason), f"cut at {cut}"

    def test_a_header_that_is_cut_off_or_wrong(self, form: SegmentFormat) -> None:
        """A failure means that a scan fails for a file whose header a crash has cut off, or that it calls the header of another
        format ``ok``."""
        data, _ = written(form, numbered(3, b"body"))
        for cut in range(len(form.header)):
            scan = form.scan(data[:cut])
            check_scan(form, data[:cut], scan)
            assert (scan.end.state, len(scan.records)) in (("torn", 0), ("corrupt", 0)) or cut == 0, f"cut at {cut}"
        if form.header:
            wrong = bytes(byte ^ 0xFF for byte in form.header) + data[len(form.header) :]
            check_scan(form, wrong, form.scan(wrong))
            assert form.scan(wrong).header not in (None, "ok")

    @tried(60)
    @given(before=st.integers(1, 4), spot=_spots, overwritten=st.booleans(), body=texts)
    def test_records_behind_a_corrupt_spot(
        self, form: SegmentFormat, before: int, spot: bytes, overwritten: bool, body: bytes
    ) -> None:
        """A failure means that salvage loses every record behind the first damaged one: either ``scan`` goes on by itself, or
        ``find_chain`` finds where records begin again. It must not pass over records to find more that hold."""
        data, placed = written(form, numbered(before + 31, body))
        at = placed[before].offset
        if overwritten:  # the head of a record
            data = data[:at] + (spot * 20)[:20] + data[at + 20 :]
        else:  # something between two records
            data = data[:at] + spot + data[at:]
            placed[before:] = [record._replace(offset=record.offset + len(spot)) for record in placed[before:]]
        with within():
            found = salvaged(form, data)
        phantoms = found - set(expected(placed))
        assume(not any(offset + size > placed[-8].offset for _, offset, size in phantoms))
        assert set(expected(placed[:before])) <= found, "records before the spot are lost"
        # Beside them a wrong size may swallow what comes next.
        assert set(expected(placed[-8:])) <= found, "records behind the spot are lost"

    @tried(30)
    @given(garbage=st.binary(min_size=1, max_size=30), count=st.integers(1, 12), length=st.integers(1, 10))
    def test_find_chain_finds_the_first_chain(self, form: SegmentFormat, garbage: bytes, count: int, length: int) -> None:
        """A failure means that ``find_chain`` passes over records, finds some where there are none, or looks before ``start``.
        A format whose scan finds its own way always answers None."""
        data, placed = written(form, numbered(count, b"body"))
        if form.find_chain(data, len(form.header), length) is None:
            with_spot = form.header + garbage + data[len(form.header) :]
            assert rows(form.scan(with_spot).records), "neither scan nor find_chain gets behind a corrupt spot"
            return
        for record, later in zip(placed, [*(other.offset for other in placed[1:]), None], strict=True):
            assert form.find_chain(data, record.offset, length) == record.offset
            behind = form.find_chain(data, record.offset + 1, length)
            assert behind is None if later is None else (behind is not None and record.offset < behind <= later)
        assert form.find_chain(data, len(data), length) is form.find_chain(data, len(data) + 1, length) is None

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_hostile_segments(self, form: SegmentFormat, kind: str) -> None:
        """A failure means that hostile files can stop a reader: the time of ``scan`` or ``find_chain`` grows faster than the
        file, or their memory is a large multiple of its size."""

        def prepared(call: Callable[[bytes], object], size: int) -> Callable[[], object]:
            return partial(call, form.header + HOSTILE[kind](form, size))

        data = form.header + HOSTILE[kind](form, 4 * SIZE)
        with within():
            for call in (form.scan, partial(form.find_chain, start=0)):
                assert is_linear(partial(prepared, call), SIZE), f"the time of {call}"
                assert peak_of(partial(call, data)) <= MULTIPLE * len(data) + BESIDE, f"the memory of {call}"
            check_anything(form, data, len(form.header))

    def test_sizes_that_lie(self, form: SegmentFormat) -> None:
        """A failure means that the format allocates the size that a record claims without comparing it with the file."""
        data, placed = written(form, numbered(2, b"body"))
        for at in range(len(data) - placed[-1].size, len(data)):
            lying = data[:at] + b"\xff" * 4 + data[at + 4 :]
            assert peak_of(partial(form.scan, lying)) <= BESIDE

    def test_golden_segments(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that this version reads segments differently from the version that made the corpus: users would lose
        stored messages, or read wrong ones. If the corpus itself is wrong, write its JSON again."""
        segments = list(golden(subject))
        if not segments:
            skip_without("golden corpus")
        for segment, description in segments:
            data = segment.read_bytes()
            check_scan(form, data, form.scan(data))
            different = difference(described(form, data), json.loads(description.read_text()))
            assert not different, f"{segment.name}: {different}"


def salvaged(form: SegmentFormat, data: bytes) -> set[Row]:
    """Return the records that a salvage finds when it goes from chain to chain."""
    start: int | None = len(form.header)
    found: set[Row] = set()
    while start is not None:
        scan = form.scan(data, start=start)
        found.update(rows(scan.records), rows(scan.duplicates))
        start = form.find_chain(data, scan.end.offset + 1) if scan.end.state != "clean" else None
    return found
