"""Tests of written segments, of formats and of record types."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import Capability, PluginError, RecordError, ScanEnd, SegmentFormat
from msgstore.locations import LIMIT
from msgstore.testing.compaction import after
from msgstore.testing.plugin import KitTests
from msgstore.testing.probes import (
    LARGE_NUMBERS,
    OTHER_TIMES,
    Batch,
    LineInterleaver,
    batches,
    clock_at,
    damaged_at,
    flipped,
    is_linear,
    long_body,
    numbered,
    peak_of,
    texts,
    tried,
    within,
)  # fmt: skip
from msgstore.testing.processes import run_in_parallel
from msgstore.testing.segments import (
    check_anything,
    check_framed,
    check_options,
    check_records,
    check_scan,
    check_spoilt,
    check_times,
    check_values,
    expected,
    fields_of,
    made,
    mapped,
    odd_bodies,
    outcome,
    reader_of,
    rows,
    written,
)  # fmt: skip
from msgstore.testing.subjects import Subject, others_of

LARGE = 16 * 2**20
"""Bytes of the largest body, or ``max_body`` of the format if that is smaller."""
BESIDE = 2 * 2**20
"""Bytes of memory that a scan of a small segment may use."""


class RoundTripTests(KitTests):
    @pytest.fixture
    def form(self, subject: Subject) -> Any:
        return made(subject)

    @tried(100)
    @given(messages=batches(), copied=st.lists(st.integers(0, 100), max_size=6), body=texts)
    def test_what_is_written_is_read(
        self, subject: Subject, form: SegmentFormat, messages: Batch, copied: list[int], body: bytes
    ) -> None:
        """A failure means that messages are lost or changed: ``encode`` gives wrong sizes, ``scan`` loses records, finds
        others, ignores ``start``, or tells offsets from there; ``decode`` or ``body_span`` gives something else than the body.
        Or that FRAMED is claimed, and the number of bytes in front of a body, or behind it, differs between records. Or that
        copies of an id, as a compaction that was killed leaves them, or a job writes them in one batch, are not told apart: the
        first belongs into ``records``, each later one into ``duplicates``. ``SegmentScan.separate_copies`` does it."""
        copies = [(messages[number % len(messages)][0], body) for number in copied if messages]
        data, placed = written(form, [*messages, *copies])
        for number, start in [(0, 0), *enumerate([*(record.offset for record in placed), len(data)])]:
            scan = form.scan(data, start=start)
            check_scan(form, data, scan, start)
            first = {record.msg_id: record for record in reversed(placed[number:])}.values()
            check_records(form, data, scan.records, [record for record in placed[number:] if record in first])
            check_records(form, data, scan.duplicates, [record for record in placed[number:] if record not in first])
            assert scan.end == ScanEnd("clean", len(data)), "a segment that was just written is not clean"
            assert not [*scan.damage, *scan.hole_sizes], "a scan reports something else than the records"
        assert form.scan(data).header == ("ok" if form.header else None)
        check_framed(subject, form, (data, placed))

    @tried(60)
    @given(messages=batches(least=1))
    def test_nothing_is_kept_or_changed(self, subject: Subject, form: SegmentFormat, messages: Batch) -> None:
        """A failure means that a method is not a pure function of its arguments: it keeps something between calls, changes
        what it was given, or a record depends on which flush has written it: records are moved and copied one by one. Or that
        it needs bytes, or keeps a view of the buffer: a segment is handed over as an ``mmap``, which cannot be closed, and its
        file cannot be cut, while a view is held."""
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
        same = form.scan(data) == scan == made(subject).scan(data)
        assert same, "the same bytes are not always read in the same way"
        check_spoilt(form, data, placed)
        with mapped(data) as copy:
            assert form.scan(copy, check_body=lambda msg_id, body: type(body) is type(msg_id) is bytes) == scan
            check_records(form, copy, scan.records, placed)
            spoilt = flipped(data, 8 * (placed[0].end - 1))
            copy[placed[0].end - 1] = spoilt[placed[0].end - 1]
            assert form.scan(copy) == form.scan(spoilt), "an mmap whose bytes have changed is read as before"

    def test_large_bodies(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that ``max_body`` is higher than what a record can hold, that a size field is too small, that a
        record would be too large for any index (sizes are below 2**40), that copies which stand far apart are no copies, or
        that FRAMED is claimed, and a large record has another number of bytes in front of its body, or behind it."""
        for byte, size in ((b"\0", LARGE + 1), (b"\1", LARGE), (b"\xff", LARGE - 1)):
            with within(60):
                body = byte * min(form.max_body, size)
                data, placed = written(form, numbered(1, body), numbered(3000, bytes(1000))[1:], numbered(2, b"again"))
                scan = form.scan(data)
                check_records(form, data, scan.records, placed[:3000])
                check_framed(subject, form, (data, placed))
                check_spoilt(form, flipped(data, 8 * placed[0].end - 160), placed[:1])
                check_records(form, data, scan.duplicates, placed[3000:])
                assert 0 < form.max_body < LIMIT - (placed[-1].size - len(b"again"))
        longest, short = (type("Fake", (bytes,), {"__len__": lambda _, size=size: size})() for size in (form.max_body, 1000))
        with contextlib.suppress(MemoryError, ValueError, TypeError, BufferError):  # of an encoder that copies each body itself
            (head, (size,)), (usual, _) = (form.encode([bytes(16)], [body]) for body in (longest, short))
            scan, cut = form.scan(form.header + head), form.scan(form.header + usual)
            assert size < form.max_body or not len(scan.records), "a record of the largest size looks like a short one"
            is_same = size < form.max_body or form.max_body < 1000 or scan.end.state == cut.end.state
            assert is_same, f"cut behind its head, the largest record is {scan.end.state}, and one of 1000 {cut.end.state}"

    @tried(40)
    @given(messages=batches(least=1, most=6), number=st.integers(0, 65))
    def test_a_codec_judges_each_body(self, form: SegmentFormat, messages: Batch, number: int) -> None:
        """A failure means that ``check_body`` is not asked for each stored body, is asked for something else, or that a body
        that it refuses passes. It belongs into ``damage``, or ends the scan, as ``invalid_message_body``."""
        data, placed = written(form, messages, numbered(60, b"one of many"))
        bad, asked, everything = placed[number % len(placed)], [], expected(placed)

        def judge(msg_id: bytes, body: bytes) -> bool:
            asked.append((msg_id, body))
            return len(asked) <= len(placed) or msg_id != bad.msg_id  # the first scan finds all of them sound

        assert form.scan(data, check_body=judge) == form.scan(data)
        assert asked == [(record.msg_id, record.body) for record in placed]
        scan = form.scan(data, check_body=judge)
        check_scan(form, data, scan)
        at = placed.index(bad)
        assert rows(scan.records) in (everything[:at], everything[:at] + everything[at + 1 :])
        refused = scan.damage[0] if scan.damage else scan.end
        assert (refused.offset, refused.reason) == (bad.offset, "invalid_message_body")
        data, (*_, copy) = written(form, [(bad.msg_id, bad.body + b"later")], after=data)
        asked.clear()
        form.scan(data, check_body=judge)
        assert (copy.msg_id, copy.body) in asked, "the codec is not asked for a later copy of a message"
        scan = form.scan(data, check_body=lambda *given: given != (bad.msg_id, bad.body))
        check_scan(form, data, scan)
        is_right = rows(scan.records) in (everything[:at], [*everything[:at], *everything[at + 1 :], copy[:3]])
        assert is_right, "behind a damaged copy of a message, its first intact one is no record"

    def test_any_thread_may_call(self, subject: Subject, form: Any) -> None:
        """A failure means that calls on several threads share state. First, a second thread makes calls between every two
        steps of others."""

        begin = len(form.header)
        finds = form.find_chain(written(form, numbered(1))[0], begin) is not None

        def check(messages: Batch) -> None:
            data, placed = written(form, messages)
            check_records(form, data, form.scan(data).records, placed)
            check_records(form, data, form.scan(data, check_body=lambda *given: given in messages).records, placed)
            behind, wanted = form.find_chain(data, begin + 1), [record.offset for record in placed[1:2]]
            is_right = begin < behind <= max(wanted, default=0) if behind is not None else not (wanted and finds)
            assert is_right, f"find_chain gives {behind}, and not {wanted}"
            first, size = data[begin : placed[0].end], len(data) - begin
            if subject.has(Capability.COMPACTABLE) and form.gap_room(begin, size) >= len(first):
                fill = form.fill_gap(begin, size, [first])
                filled = after(data, [*fill.prepare, *fill.inside, *fill.seal])
                assert rows(form.scan(filled).records) == expected(placed[:1]), "of another thread, fill_gap gives other writes"

        def run(number: int) -> None:
            messages = [(msg_id[::-1], b"%d" % number * at) for at, (msg_id, _) in enumerate(numbered(10 + number))]
            check([*messages, (bytes([number]) * 16, long_body(number))])

        LineInterleaver(partial(check, numbered(1, b"another"))).run(partial(check, numbered(2, b"body")))
        run_in_parallel(run, rounds=60)  # a round of them is short

    def test_no_call_is_remembered(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that records depend on the calls before them, as with a counter or the time of the last call: some
        byte is always the same if a new object writes it, and another if an object does that has written before; or, while
        the clock stands, only new objects write the same. Time and chance change both. Or that what was sound once is not
        checked again: with a bit flipped since, a new object reads something else."""
        ids, bodies = [msg_id for msg_id, _ in numbered(3)], [b"body"] * 3
        encoded: list[list[bytes]] = [[], []]
        for number in range(41):  # the first and the last are of new objects
            encoded[number % 2].append((form if number % 2 else made(subject)).encode(ids, bodies)[0])
        new, used = (list(map(set, zip(*each, strict=False))) for each in encoded)
        kept = [at for at, (one, other) in enumerate(zip(new, used, strict=True)) if len(one) == 1 and one != other]
        assert not kept, f"bytes {kept} of three records depend on earlier calls"
        with clock_at(OTHER_TIMES[1]):
            used = made(subject)
            used.encode(ids, bodies)
        with clock_at(int(time.time())):
            one, other, first, second = (it.encode(ids, bodies) for it in (made(subject), made(subject), used, used))
        is_same = one == first == second or one != other
        assert is_same, "the clock stands, and the second call, or an object made at another time, gives other records"
        data, placed = written(form, numbered(3, b"body"))
        check_records(form, data, form.scan(data).records, placed)
        for bit in range(8 * placed[0].offset, 8 * len(data), 7):
            spoilt, (one, new) = flipped(data, bit), (form, made(subject))
            reads = [[outcome(it, i, spoilt[at : at + size]) for i, at, size, _ in placed] for it in (one, new)]
            is_same = one.scan(spoilt) == new.scan(spoilt) and reads[0] == reads[1]
            assert is_same, f"bit {bit} is flipped: an object that has read these records before reads otherwise"

    def test_time_changes_no_record(self, subject: Subject, form: Any) -> None:
        """A failure means that what is sound today is read otherwise after the clock was set back, or on a machine whose clock
        is wrong; or that nothing can be written then."""
        for then, now in permutations((*OTHER_TIMES, int(time.time())), 2):
            with clock_at(then):
                data, placed = written(made(subject), numbered(3, b"body"))
            with clock_at(now):
                for reader in (form, made(subject)):
                    check_records(reader, data, reader.scan(data).records, placed)
                    assert reader.scan(data).header in (None, "ok"), "the header is of another object, and not ok"

    @tried(30)
    @given(messages=batches(least=1))
    def test_tools_read_it_without_options(self, subject: Subject, form: Any, messages: Batch) -> None:
        """A failure means that tools, which have no configuration, cannot read the records: an option must be stored in the
        record or the header, or matter for writing only."""
        data, placed = written(form, messages)
        without = made(attrs.evolve(subject, options={}))
        check_records(without, data, without.scan(data).records, placed)
        assert without.scan(data).header == form.scan(data).header, "tools do not accept the header"

    def test_options_that_its_class_accepts(self, subject: Subject) -> None:
        """A failure means that records cannot be written, or not be read by tools, with an option that its class accepts: let a
        validator refuse it. Or that a scan, or the ``check`` of a record type, finds other records or damage if an option has
        another value: recovery would drop messages because of a wrong one, such as a key. Or that ``fields`` gives something
        else than the option from which a field comes: 0 is a value, and a text is cut by a validator only, in bytes of UTF-8.
        Or that a field that is a time depends on the zone of the machine, or is not in nanoseconds."""
        check_options(subject)
        if subject.has(Capability.FIELDS):
            check_times(subject)

    @tried(30)
    @given(messages=batches(least=1), flips=st.lists(st.integers(0, 2000), max_size=4))
    def test_fields_of_records(self, subject: Subject, form: SegmentFormat, messages: Batch, flips: list[int]) -> None:
        """A failure means that ``fields`` does not give one value for each of the descriptor's, of its kind or None, the same
        whatever options read them; or raises for a record, or anything but RecordError for a changed one. Of a format, the
        values of a changed record count where a scan finds it."""
        subject.needs(Capability.FIELDS)
        data, placed = written(form, messages)
        fields, reader = subject.descriptor.fields, reader_of(subject)
        for entry in placed:
            whole = data[entry.offset : entry.end]
            values = fields_of(subject, whole)
            without = fields_of(attrs.evolve(subject, options={}), whole)
            assert without == values, "made with other options, it reads other fields"
            for bits in (flips, *([at] for at in range(7, 8 * (len(whole) - len(entry.body)), 8))):  # 7: the sign of a number
                spoilt = whole
                for bit in bits:
                    spoilt = flipped(spoilt, bit % (8 * len(spoilt)))
                with contextlib.suppress(RecordError):  # whatever a scan says: a record with a right checksum may hold the same
                    values = reader.fields(spoilt)
                    check_values(fields, values) if subject.kind == "record" else None
                for _, offset, size in rows(form.scan(form.header + spoilt).records):
                    with contextlib.suppress(RecordError):
                        check_values(fields, reader.fields((form.header + spoilt)[offset : offset + size]))

    def test_fields_of_odd_bodies(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that ``fields`` raises something else than RecordError, or gives a value that is not of its kind, for
        a body that a client may write: a number that is none, or has too many digits, a text that is no UTF-8."""
        subject.needs(Capability.FIELDS)
        bodies = [*odd_bodies(subject.descriptor.fields)]
        for body, (msg_id, _) in zip(bodies, numbered(len(bodies)), strict=True):
            with contextlib.suppress(RecordError):
                fields_of(subject, form.encode([msg_id], [body])[0])

    def test_bodies_of_any_size(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that a size field, or a size that stands for another, is wrong for one size: a body, a record, or a
        part of it may have just as many bytes as a field of one or two bytes can say, or one more."""
        overhead, body = len(form.encode([bytes(16)], [b""])[0]), Random(0).randbytes(2**16 + 2)
        sizes = {size for bits in range(11, 17) for size in range(2**bits - overhead % 200 - 2, 2**bits + 3)}
        bodies = [body[: min(size, form.max_body)] for size in sorted({*range(1030), *sizes})]
        data, placed = written(form, [(msg_id, body) for (msg_id, _), body in zip(numbered(len(bodies)), bodies, strict=True)])
        check_records(form, data, form.scan(data).records, placed)
        check_framed(subject, form, (data, placed))
        for size in (2**24 - overhead - 1, 2**24 - overhead):
            data, placed = written(form, numbered(2, bytes(min(size, form.max_body))))
            check_records(form, data, form.scan(data).records, placed)

    def test_time_is_linear(self, form: SegmentFormat) -> None:
        """A failure means that a large batch, or a segment of many records, sound or all of them damaged, takes time that
        grows faster than its size: ``encode`` adds bytes to bytes, or a scan copies the rest of the segment for each record."""

        def prepared(kind: str, count: int) -> Callable[[], object]:
            messages = numbered(count, b"body" * 50)
            if kind == "encode":
                return partial(form.encode, [msg_id for msg_id, _ in messages], [body for _, body in messages])
            data, placed = written(form, messages)
            damaged = bytearray(data)
            for record in placed if kind == "scan of damage" else ():
                damaged[form.body_span(data, record.offset, record.size)[0]] ^= 1
            return partial(form.scan, bytes(damaged))

        with within():
            for kind in ("encode", "scan", "scan of damage"):
                assert is_linear(partial(prepared, kind), 4000), f"the time of {kind}"

    def test_two_objects_at_once(self, subject: Subject) -> None:
        """A failure means that an object with other options changes what one writes that was made before: an option is kept in
        the class or the module."""
        ids, bodies = [bytes(16), bytes([1]) * 16], [b"", b"body"]
        with clock_at(OTHER_TIMES[0]):
            one = made(subject)
            first, second = (one.header + one.encode(ids, bodies)[0] for _ in range(2))
            for other in others_of(subject):
                with contextlib.suppress(PluginError):
                    made(other).encode(ids, bodies)
                is_same = first == one.header + one.encode(ids, bodies)[0] or first != second  # by chance
                assert is_same, f"made with {other.options}, another object changes this one"

    @tried(4, shortened=False)
    @given(messages=batches(texts, least=2, most=5))
    def test_damage_at_each_byte(self, form: SegmentFormat, messages: Batch) -> None:
        """A failure means that a segment that is cut off, has a wrong bit or a wrong size makes a scan or a read raise, hang or
        use too much memory, loses records before it, or that scans and reads disagree: clients get what a scan calls damaged.
        Damage need not be detected; but what one of them detects, both must, also if the scan ends there. Or that recovery
        cannot tell a torn write from damage: the end is ``torn``, at the beginning of the record that is cut off. Or that a
        read gives the body of another message, or another body: ``decode`` raises RecordError if the id in the record is not
        the one that was asked for, or if the record has another size than it says itself. Or that
        ``find_chain`` goes by sizes alone, and gives an offset at which a scan finds nothing."""
        data, placed = written(form, messages, numbered(1))  # the last body is empty
        begin = len(form.header)
        (msg_id, offset, size, _), end = placed[0], placed[1].end
        others = [(flipped(msg_id, bit), data[offset : offset + size]) for bit in range(128)]
        cuts = (data[offset + size : end], b"", b"something else", data[offset:end], data[offset : offset + size - 1])
        for wrong_id, wrong in (*others, *((msg_id, cut) for cut in cuts)):
            found = outcome(form, wrong_id, wrong)
            assert isinstance(found, str), f"{wrong!r} is no record of {wrong_id.hex()}, and decode gives {found!r}"

        whole, (*_, last) = written(form, messages, numbered(1, b"last"))
        for bit in range(*(8 * at for at in form.body_span(whole, last.offset, last.size))):
            assert form.scan(flipped(whole, bit)).end.state != "torn", "a damaged last record is taken for one that is cut off"

        def damage(at: int) -> None:
            before = [record for record in placed if record.end <= at]
            for number, spoilt in enumerate(damaged_at(data, at)):
                scan = check_spoilt(form, spoilt, placed)
                kept = at < begin or rows(scan.records)[: len(before)] == expected(before)
                assert kept, f"damage at {at} costs records that stand before it"
                if number == 0:  # it is cut off
                    record = max([begin, *(record.end for record in before)])
                    if at < begin:
                        assert not len(scan.records)
                        assert scan.end.state != "clean" or at == 0, f"the end of a header that is cut off at {at} is clean"
                    elif at == record:
                        assert scan.end == ScanEnd("clean", at), f"cut off at {at}, where a record ends"
                    elif data[record:at].strip(b"\0"):  # zeros may as well be a hole
                        assert scan.end == ScanEnd("torn", record, scan.end.reason), f"cut off at {at}"

        def read(spoilt: bytes) -> None:
            form.scan(spoilt)
            form.find_chain(spoilt, begin)
            for record in placed:
                outcome(form, record.msg_id, spoilt[record.offset : record.end])

        with within():
            for at in (*range(0, begin, begin // 64 + 1), *range(begin, len(data))):
                damage(at)
                for number in LARGE_NUMBERS:  # only these: to count memory takes seven times as long
                    spoilt = (data[:at] + number + data[at + len(number) :])[: len(data)]
                    assert peak_of(partial(read, spoilt)) <= BESIDE, f"the memory, for damage at {at}"

    @tried(125)
    @given(messages=batches(), cut=st.integers(0, 1000), more=st.binary(max_size=400), start=st.integers(0, 420))
    def test_arbitrary_bytes(self, form: SegmentFormat, messages: Batch, cut: int, more: bytes, start: int) -> None:
        """A failure means that ``scan``, ``find_chain`` or a read raises for bytes that no writer wrote, such as those behind
        the sound beginning of a segment or of a record; or that a scan does not report each byte exactly once, or does not tell
        copies apart if it ends at such bytes."""
        data, placed = written(form, messages, messages[:2])
        for spoilt in (more, data[: cut % (len(data) + 1)] + more):
            check_spoilt(form, spoilt, placed)
            check_anything(form, spoilt, start)
