"""The kit's classes for every mutant, and for every backend that one was made of. Run by ``python -m mutants`` only."""

from __future__ import annotations

import pytest

import mutants.backends
import mutants.formats  # noqa: F401 - the two add to MUTANTS
from msgstore.testing import BodyCodecTests, GcPolicyTests, IndexTests, RecordTypeTests, SegmentFormatTests, Subject
from mutants import MUTANTS

ORIGINALS = {mutant.original.name: mutant.original for mutant in MUTANTS}
_subjects = {m.original.name: Subject.of(m.original, **m.options) for m in MUTANTS}
_subjects |= {m.name: Subject.of(m.descriptor, **m.options) for m in MUTANTS}

for _kit in (SegmentFormatTests, RecordTypeTests, IndexTests, GcPolicyTests, BodyCodecTests):
    _mine = {name: subject for name, subject in _subjects.items() if subject.kind in _kit.kinds}
    _name = f"Test{_kit.__name__.removesuffix('Tests')}"
    _each = pytest.mark.parametrize("subject", _mine.values(), ids=_mine, scope="class")
    globals()[_name] = _each(type(_name, (_kit,), {"__module__": __name__}))
