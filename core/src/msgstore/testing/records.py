"""Tests of every record type, alone and inside the format that its descriptor names."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import (
    BoundRecord,
    FormatContext,
    RecordContext,
    RecordError,
    RecordType,
    RecordTypeDescriptor,
    SegmentFormat,
)
from msgstore.testing.data import Batch, batches, numbered, tried
from msgstore.testing.formats.roundtrip import RoundTripTests
from msgstore.testing.formats.segments import check_body, check_records, expected, rows, written
from msgstore.testing.guard import skip_without
from msgstore.testing.limits import peak_of
from msgstore.testing.subjects import Subject

UNASSIGNED = 200
"""Type byte of a record type that has no assigned one."""
LARGE = 4 * 2**20
BESIDE = 2**20
"""Bytes of memory that ``body_span`` of a large record may need."""


class RecordTypeTests(RoundTripTests):
    kinds = ("record",)

    def make_form(self, subject: Subject) -> Any:
        return format_of(subject)

    @pytest.fixture
    def record(self, subject: Subject) -> Any:
        return made(subject)

    @tried(60)
    @given(messages=batches())
    def test_alone_it_agrees_with_itself(self, record: RecordType, messages: Batch) -> None:
        """A failure means that the parts of the record type disagree: ``check`` finds damage in what ``encode`` wrote,
        ``body_span`` is not where ``decode`` reads, or ``overhead`` is not what a record has beside its body (where that
        differs, ``overhead`` is the least of it, and ``max_overhead`` the most)."""
        data, sizes = record.encode([msg_id for msg_id, _ in messages], [body for _, body in messages])
        assert len(sizes) == len(messages)
        assert sum(sizes) == len(data)
        at, most = 0, getattr(record, "max_overhead", record.overhead)
        for (_, body), size in zip(messages, sizes, strict=True):
            assert record.overhead <= size - len(body) <= most, f"{size} bytes for a body of {len(body)}"
            assert record.check(data, at, size) is None, "check finds damage in a record that was just written"
            begin, end = record.body_span(at, size)
            assert at <= begin <= end <= at + size
            check_body(data[begin:end], body, "body_span")
            check_body(record.decode(data[at : at + size]), body, "decode")
            at += size
        assert record.encode([], []) == (b"", [])

    def test_body_span_copies_nothing(self, record: RecordType) -> None:
        """A failure means that the record type copies a large record that it only has to look at."""
        _, (size,) = record.encode([bytes(16)], [bytes(LARGE)])
        assert peak_of(lambda: record.body_span(0, size)) <= BESIDE

    def test_damage_is_stepped_over(self, form: SegmentFormat, record: RecordType) -> None:
        """A failure means that one damaged record loses those behind it: a scan reports what ``check`` finds, and continues.
        Skipped for a record type that does not detect a flipped bit of a body."""
        data, placed = written(form, numbered(3, b"some body"))
        begin, _ = record.body_span(placed[1].offset, placed[1].size)
        spoilt = data[:begin] + bytes([data[begin] ^ 1]) + data[begin + 1 :]
        reason = record.check(spoilt, placed[1].offset, placed[1].size)
        if reason is None:
            skip_without("a check of bodies")
        scan = form.scan(spoilt)
        assert [(spot.offset, spot.size, spot.reason) for spot in scan.damage] == [(placed[1].offset, placed[1].size, reason)]
        assert rows(scan.records) == expected([placed[0], placed[2]])
        with pytest.raises(RecordError):
            form.decode(placed[1].msg_id, spoilt[placed[1].offset : placed[1].end])

    def test_the_byte_is_the_one_that_it_is_bound_to(self, subject: Subject) -> None:
        """A failure means that the record type ignores the type byte of its context. The configuration of a store decides it;
        otherwise records of another type are read as this type's."""
        own = format_of(subject)
        assert set(own.scan(written(own, numbered(3))[0]).records.types) == {byte_of(subject)}
        bytes_bound = [UNASSIGNED + 1, UNASSIGNED + 2]
        forms = [format_of(subject, byte) for byte in bytes_bound]
        for form, other, byte in zip(forms, reversed(forms), bytes_bound, strict=True):
            data, placed = written(form, numbered(3, b"body"))
            assert set(form.scan(data).records.types) == {byte}
            scan = other.scan(data)
            assert not rows(scan.records)
            assert scan.end.state == "corrupt"
            with pytest.raises(RecordError):
                other.decode(placed[0].msg_id, data[placed[0].offset : placed[0].end])

    def test_beside_the_records_of_the_format(self, subject: Subject) -> None:
        """A failure means that a store that begins to use the record type cannot read older records, or the other way round:
        one segment may hold records of several types."""
        form, plain = format_of(subject), format_of(subject, bound=False)
        messages = numbered(6, b"body")
        old, first = written(plain, messages[:3])
        new, second = written(form, messages[3:])
        data = old + new[len(form.header) :]
        placed = first + [attrs.evolve(entry, offset=entry.offset + len(old) - len(form.header)) for entry in second]
        check_records(form, data, form.scan(data).records, placed)

    def test_each_option_has_a_default(self, subject: Subject) -> None:
        """A failure means that tools, which have no configuration, cannot read the records: an option must be stored in the
        record, or matter for writing only."""
        descriptor = descriptor_of(subject)
        needed = [option.name for option in attrs.fields(descriptor.options) if option.default is attrs.NOTHING]
        assert not needed, f"no default: {', '.join(needed)}"
        form = format_of(subject)
        data, placed = written(form, numbered(5, b"body"))
        reader = format_of(attrs.evolve(subject, options={}))
        check_records(reader, data, reader.scan(data).records, placed)

    @tried(30)
    @given(messages=batches(least=1), flips=st.lists(st.integers(0, 2000), max_size=4))
    def test_fields(self, subject: Subject, messages: Batch, flips: list[int]) -> None:
        """A failure means that tools cannot show what the descriptor says that records hold: ``fields`` gives one value for
        each of the descriptor's, of its kind or None, the same whatever options read them; and raises RecordError, nothing
        else, for a record that cannot say."""
        fields = getattr(descriptor_of(subject), "fields", ())
        if not fields:
            skip_without("fields")
        record, reader = made(subject), made(attrs.evolve(subject, options={}))
        data, placed = written(format_of(subject), messages)
        for entry in placed:
            whole = data[entry.offset : entry.end]
            values = record.fields(whole)
            check_values(fields, values)
            assert reader.fields(whole) == values, "made with other options, it reads other fields"
            for bits in (flips, *([8 * at + 7] for at in range(record.overhead))):  # 7: the sign of a number
                spoilt = bytearray(whole)
                for bit in bits:
                    spoilt[bit // 8 % len(spoilt)] ^= 1 << bit % 8
                if record.check(bytes(spoilt), 0, len(spoilt)) is None:
                    with contextlib.suppress(RecordError):
                        check_values(fields, record.fields(bytes(spoilt)))


def descriptor_of(subject: Subject) -> RecordTypeDescriptor:
    assert isinstance(subject.descriptor, RecordTypeDescriptor)
    return subject.descriptor


def byte_of(subject: Subject) -> int:
    assigned = descriptor_of(subject).assigned_byte
    return UNASSIGNED if assigned is None else assigned


def made(subject: Subject, byte: int | None = None) -> Any:
    """The record type under test, a RecordType."""
    return subject.make(RecordContext(subject.made_options, byte_of(subject) if byte is None else byte))


def format_of(subject: Subject, byte: int | None = None, *, bound: bool = True) -> Any:
    """The format that the descriptor names, a SegmentFormat that writes records of the type; or, not bound, its own."""
    descriptor = descriptor_of(subject)
    form = subject.catalogue.format(descriptor.format)
    if not bound:
        return subject.catalogue.make(form, FormatContext(form.options()))
    byte = byte_of(subject) if byte is None else byte
    name = subject.name if byte == byte_of(subject) else f"{subject.name}-elsewhere"
    binding = BoundRecord(name, byte, made(subject, byte))
    return subject.catalogue.make(form, FormatContext(form.options(), (binding,), name))


KINDS: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes, "time": int}


def check_values(fields: Sequence[Any], values: object) -> None:
    """``fields``: the descriptor's RecordFields."""
    assert isinstance(values, tuple), f"fields are a tuple, not {values!r}"
    assert len(values) == len(fields), f"{len(values)} values for {len(fields)} fields"
    for field, value in zip(fields, values, strict=True):
        if value is not None:
            assert type(value) is KINDS[field.kind], f"{field.name} is {value!r}, and said to be of kind {field.kind}"
            assert not isinstance(value, int) or -(2**63) <= value < 2**63, f"{field.name} does not fit into 64 bits"
