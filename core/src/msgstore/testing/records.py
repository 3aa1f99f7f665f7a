"""Tests of every record type, alone and inside the format that its descriptor names."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import BoundRecord, FormatContext, RecordContext, RecordError, RecordType, RecordTypeDescriptor
from msgstore.testing.data import Batch, batches, flipped, numbered, tried
from msgstore.testing.formats.roundtrip import RoundTripTests
from msgstore.testing.formats.segments import check_records, encoded, expected, rows, written
from msgstore.testing.guard import skip_without
from msgstore.testing.subjects import Subject

UNASSIGNED = 200
"""Type byte of a record type that has no assigned one."""


class RecordTypeTests(RoundTripTests):
    kinds = ("record",)

    def make_form(self, subject: Subject) -> Any:
        return format_of(subject)

    @tried(60)
    @given(messages=batches())
    def test_overhead(self, subject: Subject, messages: Batch) -> None:
        """A failure means that ``overhead`` is not what a record has beside its body (where that differs, ``overhead`` is the
        least of it, and ``max_overhead`` the most), or that ``encode`` gives something else than the size of each record."""
        record: RecordType = made(subject)
        data, sizes = record.encode([msg_id for msg_id, _ in messages], [body for _, body in messages])
        assert (len(sizes), sum(sizes)) == (len(messages), len(data)), f"{sizes} are not the sizes of {len(messages)} records"
        least, most = record.overhead, getattr(record, "max_overhead", record.overhead)
        beside = [size - len(body) for (_, body), size in zip(messages, sizes, strict=True)]
        assert all(least <= size <= most for size in beside), f"{beside} bytes beside bodies, not {least} to {most}"

    def test_damage_is_stepped_over(self, subject: Subject, form: Any) -> None:
        """A failure means that one damaged record loses those behind it: a scan reports what ``check`` finds, and continues.
        Skipped for a record type that does not detect a flipped bit of a body."""
        record: RecordType = made(subject)
        data, placed = written(form, numbered(3, b"some body"))
        _, offset, size, _ = bad = placed[1]
        spoilt = flipped(data, 8 * record.body_span(offset, size)[0])
        reason = record.check(spoilt, offset, size)
        if reason is None:
            skip_without("a check of bodies")
        scan = form.scan(spoilt)
        assert [attrs.astuple(spot) for spot in scan.damage] == [(offset, size, reason)]
        assert rows(scan.records) == expected([placed[0], placed[2]])
        with pytest.raises(RecordError):
            form.decode(bad.msg_id, spoilt[offset : bad.end])

    def test_the_byte_is_the_one_that_it_is_bound_to(self, subject: Subject, form: Any) -> None:
        """A failure means that the record type ignores the type byte of its context. The configuration of a store decides it;
        otherwise records of another type are read as this type's."""
        assert set(form.scan(written(form, numbered(3))[0]).records.types) == {byte_of(subject)}
        one, another = UNASSIGNED + 1, UNASSIGNED + 2
        for byte, of_another in ((one, another), (another, one)):
            writer, other = format_of(subject, byte), format_of(subject, of_another)
            data, (first, *_) = written(writer, numbered(3, b"body"))
            assert set(writer.scan(data).records.types) == {byte}
            scan = other.scan(data)
            assert (rows(scan.records), scan.end.state) == ([], "corrupt"), "records of another type are taken for its own"
            with pytest.raises(RecordError):
                other.decode(first.msg_id, data[first.offset : first.end])

    def test_beside_the_records_of_the_format(self, subject: Subject, form: Any) -> None:
        """A failure means that a store that begins to use the record type cannot read older records, or the other way round:
        one segment may hold records of several types."""
        messages = numbered(6, b"body")
        old, first = written(format_of(subject, bound=False), messages[:3])
        new, second = encoded(form, messages[3:], len(old))
        check_records(form, old + new, form.scan(old + new).records, first + second)

    @tried(30)
    @given(messages=batches(least=1), flips=st.lists(st.integers(0, 2000), max_size=4))
    def test_tools_read_it_without_options(self, subject: Subject, form: Any, messages: Batch, flips: list[int]) -> None:
        """A failure means that tools, which have no configuration, cannot read the records: an option must be stored in the
        record, or matter for writing only. Or that ``fields`` does not give one value for each of the descriptor's, of its
        kind or None, the same whatever options read them; or raises anything but RecordError for a record that cannot say."""
        data, placed = written(form, messages)
        without = attrs.evolve(subject, options={})
        check_records(format_of(without), data, format_of(without).scan(data).records, placed)
        fields, record, reader = descriptor_of(subject).fields, made(subject), made(without)
        for entry in placed if fields else ():
            whole = data[entry.offset : entry.end]
            values = record.fields(whole)
            check_values(fields, values)
            assert reader.fields(whole) == values, "made with other options, it reads other fields"
            for bits in (flips, *([8 * at + 7] for at in range(record.overhead))):  # 7: the sign of a number
                spoilt = whole
                for bit in bits:
                    spoilt = flipped(spoilt, bit % (8 * len(spoilt)))
                if record.check(spoilt, 0, len(spoilt)) is None:
                    with contextlib.suppress(RecordError):
                        check_values(fields, record.fields(spoilt))


def descriptor_of(subject: Subject) -> RecordTypeDescriptor:
    assert isinstance(subject.descriptor, RecordTypeDescriptor)
    return subject.descriptor


def byte_of(subject: Subject) -> int:
    assigned = descriptor_of(subject).assigned_byte
    return UNASSIGNED if assigned is None else assigned


def made(subject: Subject, byte: int | None = None) -> Any:
    """The record type under test, a RecordType."""
    return subject.make(RecordContext(subject.made_options, byte or byte_of(subject)))


def format_of(subject: Subject, byte: int | None = None, *, bound: bool = True) -> Any:
    """The format that the descriptor names, a SegmentFormat that writes records of the type; or, not bound, its own."""
    form = subject.catalogue.format(descriptor_of(subject).format)
    context = FormatContext(form.options())
    if bound:
        name = f"{subject.name}-elsewhere" if byte else subject.name
        binding = BoundRecord(name, byte or byte_of(subject), made(subject, byte))
        context = attrs.evolve(context, records=(binding,), record=name)
    return subject.catalogue.make(form, context)


KINDS: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes, "time": int}


def check_values(fields: Sequence[Any], values: object) -> None:
    """``fields``: the descriptor's RecordFields."""
    assert isinstance(values, tuple), f"fields are a tuple, not {values!r}"
    assert len(values) == len(fields), f"{len(values)} values for {len(fields)} fields"
    for field, value in zip(fields, values, strict=True):
        if value is not None:
            assert type(value) is KINDS[field.kind], f"{field.name} is {value!r}, and said to be of kind {field.kind}"
            assert not isinstance(value, int) or -(2**63) <= value < 2**63, f"{field.name} does not fit into 64 bits"
