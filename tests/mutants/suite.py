"""The kit's classes for every mutant, and for every backend that one was made of. Run by ``python -m mutants`` only."""

from __future__ import annotations

import importlib

import pytest

from msgstore.testing import BodyCodecTests, GcPolicyTests, IndexTests, RecordTypeTests, SegmentFormatTests, Subject
from mutants import MUTANTS

for _module in ("formats", "records", "indexes", "policies", "bodies"):
    importlib.import_module(f"mutants.{_module}")  # adds to MUTANTS
ORIGINALS = {mutant.original.name: mutant.original for mutant in MUTANTS}


for _kit in (SegmentFormatTests, RecordTypeTests, IndexTests, GcPolicyTests, BodyCodecTests):
    _mutants = [mutant for mutant in MUTANTS if (mutant.kind,) == _kit.kinds]
    _descriptors = {m.original.name: (m.original, m.options) for m in _mutants}
    _descriptors |= {m.name: (m.descriptor, m.options) for m in _mutants}
    _subjects = [Subject.of(descriptor, **options) for descriptor, options in _descriptors.values()]
    _each = pytest.mark.parametrize("subject", _subjects, ids=_descriptors, scope="class")
    _name = f"Test{_kit.__name__.removesuffix('Tests')}"
    globals()[_name] = _each(type(_name, (_kit,), {"__module__": __name__}))
