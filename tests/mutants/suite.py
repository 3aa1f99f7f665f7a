"""The kit's classes for each mutant, and each original that no distribution registers. Run by ``python -m mutants`` only."""

from __future__ import annotations

import pytest

import mutants.backends
import mutants.formats
import mutants.messages  # noqa: F401 - the three add to MUTANTS
from msgstore.plugins.catalogue import load_catalogue
from msgstore.testing import (
    BodyCodecTests,
    GcPolicyTests,
    IndexTests,
    RecordTypeTests,
    SegmentFormatTests,
    SinkTests,
    SourceTests,
    Subject,
)
from mutants import MUTANTS

_registered = [it.descriptor for it in load_catalogue().registrations]
ORIGINALS = {m.original.name: m for m in MUTANTS if m.options or m.original not in _registered}
"""The others are tested as a part of their distributions."""
_subjects = {name: Subject.of(m.original, **m.options) for name, m in ORIGINALS.items()}
_subjects |= {m.name: Subject.of(m.descriptor, **m.options) for m in MUTANTS}

for _kit in (SegmentFormatTests, RecordTypeTests, IndexTests, GcPolicyTests, BodyCodecTests, SourceTests, SinkTests):
    _mine = {name: subject for name, subject in _subjects.items() if subject.kind in _kit.kinds}
    _name = f"Test{_kit.__name__.removesuffix('Tests')}"
    _each = pytest.mark.parametrize("subject", _mine.values(), ids=_mine, scope="class")
    globals()[_name] = _each(type(_name, (_kit,), {"__module__": __name__}))
