"""The kit's classes for every mutant, and for every backend that one was made of. Run by ``python -m mutants`` only."""

from __future__ import annotations

import pytest

from msgstore.testing import BodyCodecTests, GcPolicyTests, IndexTests, RecordTypeTests, SegmentFormatTests, Subject
from mutants import MUTANTS, bodies, formats, indexes, policies, records

LISTS = (bodies, formats, indexes, policies, records)
"""Importing them fills MUTANTS."""
NAMES = sorted({mutant.original.name for mutant in MUTANTS}) + [mutant.name for mutant in MUTANTS]


def subjects_of(kind: str) -> list[object]:
    originals = {mutant.original.name: (mutant.original, mutant.options) for mutant in MUTANTS if mutant.kind == kind}
    faulty = {mutant.name: (mutant.descriptor, mutant.options) for mutant in MUTANTS if mutant.kind == kind}
    return [pytest.param(found, id=name) for name, found in (originals | faulty).items()]


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest) -> Subject:
    descriptor, options = request.param
    return Subject.of(descriptor, **options)


for _kit in (SegmentFormatTests, RecordTypeTests, IndexTests, GcPolicyTests, BodyCodecTests):
    _each = pytest.mark.parametrize("subject", subjects_of(*_kit.kinds), indirect=True, scope="class")
    _name = f"Test{_kit.__name__.removesuffix('Tests')}"
    globals()[_name] = _each(type(_name, (_kit,), {"__module__": __name__}))
