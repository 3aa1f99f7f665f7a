"""Tests of every segment format."""

from __future__ import annotations

import json
from typing import Any

from msgstore.contract import Capability, SegmentFormat
from msgstore.testing.data import numbered
from msgstore.testing.formats.damage import DamageTests
from msgstore.testing.formats.gaps import GapTests
from msgstore.testing.formats.roundtrip import RoundTripTests
from msgstore.testing.formats.segments import check_scan, made, written
from msgstore.testing.golden import described, difference, golden
from msgstore.testing.guard import skip_without
from msgstore.testing.subjects import Subject


class SegmentFormatTests(RoundTripTests, DamageTests, GapTests):
    kinds = ("format",)

    def make_form(self, subject: Subject) -> Any:
        return made(subject)

    def test_types_are_told_where_there_are_some(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that ``types`` is 0, which is no type, for a record of a format that claims TYPED_RECORDS, or another
        value for a format that does not."""
        data, _ = written(form, numbered(5, b"body"))
        kinds = set(form.scan(data).records.types)
        assert len(kinds) == 1
        assert (kinds != {0}) == subject.has(Capability.TYPED_RECORDS)

    def test_golden_segments(self, subject: Subject, form: SegmentFormat) -> None:
        """A failure means that this version reads segments differently from the version that made the corpus: users would lose
        stored messages, or read wrong ones. If the corpus itself is wrong, write its JSON again."""
        segments = list(golden(subject))
        if not segments:
            skip_without("golden corpus")
        for segment, description in segments:
            data = segment.read_bytes()
            check_scan(form, data, form.scan(data))
            found, wanted = described(form, data), json.loads(description.read_text())
            different = [key for key in sorted(wanted.keys() | found.keys()) if found.get(key) != wanted.get(key)]
            assert not different, difference(segment.name, different[0], found, wanted)
