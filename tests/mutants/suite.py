"""The kit's classes for every mutant, and for every backend that one was made of. Run by :mod:`mutants.running` only."""

from __future__ import annotations

import pytest

from msgstore.testing import BodyCodecTests, GcPolicyTests, IndexTests, RecordTypeTests, SegmentFormatTests, Subject
from mutants.everything import MUTANTS


def subjects_of(kind: str) -> list[object]:
    originals = {mutant.original.name: (mutant.original, mutant.options) for mutant in MUTANTS if mutant.kind == kind}
    faulty = {mutant.name: (mutant.descriptor, mutant.options) for mutant in MUTANTS if mutant.kind == kind}
    return [pytest.param(found, id=name) for name, found in (originals | faulty).items()]


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest) -> Subject:
    descriptor, options = request.param
    return Subject.of(descriptor, **options)


def each(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", subjects_of(kind), indirect=True, scope="class")


@each("format")
class TestSegmentFormat(SegmentFormatTests):
    pass


@each("record")
class TestRecordType(RecordTypeTests):
    pass


@each("index")
class TestIndex(IndexTests):
    pass


@each("gc")
class TestGcPolicy(GcPolicyTests):
    pass


@each("body")
class TestBodyCodec(BodyCodecTests):
    pass
