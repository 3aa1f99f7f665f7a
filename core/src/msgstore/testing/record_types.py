"""Tests of every record type, alone and inside the format that its descriptor names."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given

from msgstore.contract import FormatContext, RecordError
from msgstore.testing.plugin import skip_without
from msgstore.testing.probes import Batch, batches, flipped, numbered, tried
from msgstore.testing.records import RoundTripTests
from msgstore.testing.segments import (
    UNASSIGNED,
    byte_of,
    check_records,
    expected,
    format_of,
    record_of,
    rows,
    written,
)  # fmt: skip
from msgstore.testing.subjects import Subject


class RecordTypeTests(RoundTripTests):
    kinds = ("record",)

    @tried(60)
    @given(messages=batches())
    def test_overhead(self, subject: Subject, messages: Batch) -> None:
        """A failure means that ``overhead`` is not what each record has beside the body that ``encode`` got, or that
        ``encode`` gives something else than the size of each record."""
        record = record_of(subject)
        data, sizes = record.encode([msg_id for msg_id, _ in messages], [body for _, body in messages])
        assert (len(sizes), sum(sizes)) == (len(messages), len(data)), f"{sizes} are not the sizes of {len(messages)} records"
        beside = [size - len(body) for (_, body), size in zip(messages, sizes, strict=True)]
        assert set(beside) <= {record.overhead}, f"{beside} bytes beside the bodies, and overhead is {record.overhead}"

    def test_damage_is_stepped_over(self, subject: Subject, form: Any) -> None:
        """A failure means that one damaged record loses those behind it: a scan reports what ``check`` finds, and continues.
        Skipped for a record type that does not detect a flipped bit of a body."""
        data, placed = written(form, numbered(3, b"some body"))
        bad = placed[1]
        spoilt = flipped(data, 8 * form.body_span(data, bad.offset, bad.size)[0])
        reason = record_of(subject).check(spoilt, bad.offset, bad.size)
        if reason is None:
            skip_without("a check of bodies")
        scan = form.scan(spoilt)
        assert [attrs.astuple(spot) for spot in scan.damage] == [(bad.offset, bad.size, reason)]
        assert rows(scan.records) == expected([placed[0], placed[2]])
        with pytest.raises(RecordError):
            form.decode(bad.msg_id, spoilt[bad.offset : bad.end])

    def test_the_byte_is_the_one_that_it_is_bound_to(self, subject: Subject, form: Any) -> None:
        """A failure means that the record type ignores the type byte of its context. The configuration of a store decides it;
        otherwise records of another type are read as this type's."""
        types = set(form.scan(written(form, numbered(3))[0]).records.types)
        assert types == {byte_of(subject)}, f"it is bound to {byte_of(subject)}, and a scan finds records of the types {types}"
        one, another = UNASSIGNED + 1, UNASSIGNED + 2
        for byte, of_another in ((one, another), (another, one)):
            writer, other = format_of(subject, byte), format_of(subject, of_another)
            data, (first, *_) = written(writer, numbered(3, b"body"))
            types = set(writer.scan(data).records.types)
            assert types == {byte}, f"it is bound to {byte}, and a scan finds records of the types {types}"
            scan = other.scan(data)
            assert (rows(scan.records), scan.end.state) == ([], "corrupt"), "records of another type are taken for its own"
            with pytest.raises(RecordError):
                other.decode(first.msg_id, data[first.offset : first.end])

    def test_beside_the_records_of_the_format(self, subject: Subject, form: Any) -> None:
        """A failure means that a store that begins to use the record type cannot read older records, or the other way round:
        one segment may hold records of several types."""
        messages, own = numbered(6, b"body"), subject.catalogue.format(subject.descriptor.format)
        old, first = written(subject.catalogue.make(own, FormatContext(own.options())), messages[:3])
        data, second = written(form, messages[3:], after=old)
        check_records(form, data, form.scan(data).records, first + second)
