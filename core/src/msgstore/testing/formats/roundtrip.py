"""Tests of written segments, for formats and record types."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import Capability, RecordError, ScanEnd, SegmentFormat
from msgstore.locations import LIMIT
from msgstore.testing.concurrency import ROUNDS, at_once, long_body
from msgstore.testing.data import Batch, batches, flipped, numbered, texts, tried, within
from msgstore.testing.formats.segments import Placed, check_records, check_scan, expected, rows, spans, written
from msgstore.testing.guard import KitTests
from msgstore.testing.subjects import Subject

LARGE = 16 * 2**20
"""Bytes of the largest body, or ``max_body`` of the format if that is smaller."""


class RoundTripTests(KitTests):
    def make_form(self, subject: Subject) -> Any:
        """Return the SegmentFormat that writes what is tested."""
        raise NotImplementedError

    @pytest.fixture
    def form(self, subject: Subject) -> Any:
        return self.make_form(subject)

    @tried(100)
    @given(messages=batches(), copied=st.lists(st.integers(0, 100), max_size=6), body=texts)
    def test_what_is_written_is_read(
        self, subject: Subject, form: SegmentFormat, messages: Batch, copied: list[int], body: bytes
    ) -> None:
        """A failure means that messages are lost or changed: ``encode`` gives wrong sizes, ``scan`` loses records, finds
        others, ignores ``start``, or tells offsets from there; ``decode`` or ``body_span`` gives something else than the body.
        Or that FRAMED is claimed, and the number of bytes in front of a body, or behind it, differs between records. Or that
        copies of an id, as a compaction that was killed leaves them, are not told apart: the first belongs into ``records``,
        each later one into ``duplicates``. ``SegmentScan.separate_copies`` does it."""
        copies = [(messages[number % len(messages)][0], body) for number in copied if messages]
        data, placed = written(form, messages, *([copy] for copy in copies))
        for number, start in [(0, 0), *enumerate([*(record.offset for record in placed), len(data)])]:
            scan = form.scan(data, start=start)
            check_scan(form, data, scan, start)
            first = {record.msg_id: record for record in reversed(placed[number:])}
            check_records(form, data, scan.records, [record for record in placed[number:] if record is first[record.msg_id]])
            later = [record for record in placed[number:] if record is not first[record.msg_id]]
            check_records(form, data, scan.duplicates, later)
            assert scan.end == ScanEnd("clean", len(data)), "a segment that was just written is not clean"
            assert len(spans(scan)) == len(placed) - number, "a scan reports something else than the records"
        assert form.scan(data).header == ("ok" if form.header else None)
        found = ((record, form.body_span(data, record.offset, record.size)) for record in placed)
        frames = {(begin - record.offset, record.end - end) for record, (begin, end) in found}
        framed = len(frames) < 2 or not subject.has(Capability.FRAMED)
        assert framed, f"FRAMED is claimed, bytes in front of a body and behind it are {', '.join(map(str, sorted(frames)))}"

    @tried(60)
    @given(messages=batches())
    def test_nothing_is_kept_or_changed(self, subject: Subject, form: SegmentFormat, messages: Batch) -> None:
        """A failure means that a method is not a pure function of its arguments: it keeps something between calls, changes
        what it was given, or a record depends on which flush has written it. Records are moved and copied one by one."""
        ids, bodies = [msg_id for msg_id, _ in messages], [body for _, body in messages]
        given_ids, given_bodies = list(ids), list(bodies)
        form.encode(given_ids, given_bodies)
        assert (given_ids, given_bodies) == (ids, bodies), "encode changes the lists that it is given"
        data, placed = written(form, messages)
        assert form.encode(tuple(ids), tuple(bodies))[1] == [record.size for record in placed], "tuples are sequences, too"
        assert form.encode([], []) == (b"", [])
        alone, again = written(form, *([message] for message in messages))
        assert again == placed, "a batch is not the records that are written one by one"
        check_records(form, alone, form.scan(alone).records, placed)
        scan = form.scan(data)
        form.scan(form.header)
        same = form.scan(data) == scan == self.make_form(subject).scan(data)
        assert same, "the same bytes are not always read in the same way"

    @pytest.mark.parametrize("byte", [0, 1, 255])
    def test_large_bodies(self, form: SegmentFormat, byte: int) -> None:
        """A failure means that ``max_body`` is higher than what a record can hold, that a size field is too small, that a
        record would be too large for any index (sizes are below 2**40), or that copies which stand far apart are no copies."""
        body = bytes([byte]) * min(form.max_body, LARGE)
        data, placed = written(form, numbered(1, body), numbered(3000, bytes(1000))[1:], numbered(2, b"again"))
        scan = form.scan(data)
        check_records(form, data, scan.records, placed[:3000])
        check_records(form, data, scan.duplicates, placed[3000:])
        assert 0 < form.max_body < LIMIT - (placed[-1].size - len(b"again"))

    @tried(40)
    @given(messages=batches(least=1, most=6), number=st.integers(0, 65))
    def test_a_codec_judges_each_body(self, form: SegmentFormat, messages: Batch, number: int) -> None:
        """A failure means that ``check_body`` is not asked for each stored body, is asked for something else, or that a body
        that it refuses passes. It belongs into ``damage``, or ends the scan, as ``invalid_message_body``."""
        data, placed = written(form, messages, numbered(60, b"one of many"))
        asked: list[tuple[bytes, bytes]] = []

        def refuses(msg_id: bytes, body: bytes) -> bool:
            asked.append((msg_id, body))
            return msg_id != bad.msg_id

        bad = Placed(b"", 0, 0, b"")
        assert form.scan(data, check_body=refuses) == form.scan(data)
        assert all(type(given) is bytes for pair in asked for given in pair), "check_body is given bytes"
        assert asked == [(record.msg_id, record.body) for record in placed]
        bad = placed[number % len(placed)]
        scan = form.scan(data, check_body=refuses)
        check_scan(form, data, scan)
        at, everything = placed.index(bad), expected(placed)
        assert rows(scan.records) in (everything[:at], everything[:at] + everything[at + 1 :])
        refused = scan.damage[0] if scan.damage else scan.end
        assert (refused.offset, refused.reason) == (bad.offset, "invalid_message_body")

    @tried(40)
    @given(messages=batches(least=2), body=texts)
    def test_decode_refuses_what_is_not_the_record(self, form: SegmentFormat, messages: Batch, body: bytes) -> None:
        """A failure means that a read gives the body of another message: ``decode`` has to look at the id in the record, and
        to raise RecordError if it is not the one that was asked for. Nothing else may be raised, whatever the bytes are."""
        data, (asked, other, *_) = written(form, messages)
        for wrong in (data[other.offset : other.end], b"", body):
            with pytest.raises(RecordError):
                form.decode(asked.msg_id, wrong)
        for size in range(asked.size):
            with contextlib.suppress(RecordError):
                assert type(form.decode(asked.msg_id, data[asked.offset : asked.offset + size])) is bytes

    def test_segments_that_are_mapped(self, form: SegmentFormat) -> None:
        """A failure means that a method needs bytes, or keeps a view of the buffer: a segment is handed over as an ``mmap``,
        which cannot be closed, and its file cannot be cut, while somebody holds one."""
        data, placed = written(form, numbered(20, b"body"))
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            scan = form.scan(buffer)
            assert scan == form.scan(data)
            assert form.scan(buffer, check_body=lambda msg_id, body: type(body) is type(msg_id) is bytes) == scan
            assert form.find_chain(buffer, len(form.header)) == form.find_chain(data, len(form.header))
            check_records(form, buffer, scan.records, placed)
            buffer.close()

    def test_any_thread_may_call(self, form: SegmentFormat) -> None:
        """A failure means that calls on several threads share state."""

        def run(number: int) -> None:
            messages = [(msg_id[::-1], b"%d" % number * at) for at, (msg_id, _) in enumerate(numbered(10 + number))]
            data, placed = written(form, [*messages, (bytes([number]) * 16, long_body(number))])
            check_records(form, data, form.scan(data).records, placed)

        at_once(run, 3 * ROUNDS)  # a round of them is short

    @tried(6)
    @given(messages=batches(texts, least=2, most=5))
    def test_a_flipped_bit(self, form: SegmentFormat, messages: Batch) -> None:
        """A failure means that one wrong bit makes a scan or a read raise, hang or use too much memory, loses records before
        it, or that scans and reads disagree: clients get what a scan calls damaged. Damage need not be detected; but what
        one of them detects, both must."""
        data, placed = written(form, messages)
        begin = len(form.header)
        with within():
            for at in (*range(0, begin, begin // 64 + 1), *range(begin, len(data))):
                for bit in range(8):
                    spoilt = flipped(data, 8 * at + bit)
                    found = check_spoilt(form, spoilt, placed)
                    form.find_chain(spoilt, begin)
                    before = expected([record for record in placed if record.end <= at])
                    kept = at < begin or found[: len(before)] == before
                    assert kept, f"a flipped bit at {at} costs records that stand before it"

    @tried(250)
    @given(
        messages=st.none() | batches(),
        edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9), st.binary(max_size=9)), max_size=4),
        cut=st.none() | st.integers(0, 60),
        more=st.binary(max_size=400),
        start=st.integers(0, 420),
    )
    def test_arbitrary_bytes(
        self, form: SegmentFormat, messages: Any, edits: list[tuple[int, int, bytes]], cut: int | None, more: bytes, start: int
    ) -> None:
        """A failure means that ``scan``, ``find_chain`` or a read raises for damaged records or bytes that no writer wrote,
        such as those behind a sound beginning of a record; or that a scan does not report each byte exactly once."""
        data, placed = (b"", []) if messages is None else written(form, messages)
        for at, left_out, put_in in edits:
            data = data[:at] + put_in + data[at + left_out :]
        if placed and cut is not None:
            last = placed[-1]
            data = data[: last.offset + min(cut, last.size)]
            check_spoilt(form, (data + more)[: last.end].ljust(last.end, b"\0"), placed)
        check_anything(form, data + more, start)


def check_anything(form: SegmentFormat, data: bytes, start: int) -> None:
    for begin in {0, min(start, len(data)), min(len(form.header), len(data))}:
        check_scan(form, data, form.scan(data, start=begin), begin)
    form.scan(data, check_body=lambda _, body: len(body) % 3 == 0)
    found = form.find_chain(data, start)
    assert found is None or start <= found < len(data), f"a chain at {found}, asked for from {start} on"
    if found is not None:
        scan = form.scan(data, start=found)
        assert len(scan.records) or scan.damage, f"no record at {found}, where find_chain has found some"


def check_spoilt(form: SegmentFormat, data: bytes, placed: Sequence[Placed]) -> list[tuple[bytes, int, int]]:
    """Scans and reads detect the same damage in records whose type, size and id are intact. Return the records of the scan."""
    scan = form.scan(data)
    check_scan(form, data, scan)
    damaged = {(spot.offset, spot.size) for spot in scan.damage}
    for record in placed:
        is_damaged = (record.offset, record.size) in damaged
        with pytest.raises(RecordError) if is_damaged else contextlib.suppress(RecordError):
            assert type(form.decode(record.msg_id, data[record.offset : record.end])) is bytes
    return rows(scan.records)
