"""The kit's classes for each mutant, and each original that no distribution registers. Run by ``python -m mutants`` only."""

from __future__ import annotations

import attrs
import pytest

import msgstore.testing
import mutants.backends
import mutants.formats
import mutants.messages
import mutants.records  # noqa: F401 - the modules add to MUTANTS
from erlang_terms import to_term
from msgstore.plugins.catalogue import load_catalogue
from msgstore.testing import (
    Subject,
)
from mutants import MUTANTS
from rabbitmq_files.terms import Atom

_registered = [it.descriptor for it in load_catalogue().registrations]
ORIGINALS = {m.original.name: m for m in MUTANTS if m.options or m.original not in _registered}
"""The others are tested as a part of their distributions."""
_subjects = {name: Subject.of(m.original, **m.options) for name, m in ORIGINALS.items()}
_subjects |= {m.name: Subject.of(m.descriptor, **m.options) for m in MUTANTS}


MATES = {"source": "sink", "sink": "source"}


def _with_a_mate(subject: Subject, original: str) -> Subject:
    """The sink ``subject`` with the source of the original under the same name, or the source with its sink."""
    added = [
        attrs.evolve(it, descriptor=attrs.evolve(it.descriptor, name=subject.name))
        for it in subject.catalogue.registrations
        if (it.kind, it.descriptor.name) == (MATES[subject.kind], original)
    ]
    return attrs.evolve(
        subject, catalogue=attrs.evolve(subject.catalogue, registrations=(*subject.catalogue.registrations, *added))
    )


_subjects |= {m.name: _with_a_mate(_subjects[m.name], m.original.name) for m in MUTANTS if _subjects[m.name].kind in MATES}

_RESOURCE = (Atom("resource"), b"/", Atom("exchange"), b"ex")
SAMPLES = pytest.fixture(lambda self: [to_term((Atom("basic_message"), _RESOURCE, [], (), b"i" * 16, Atom("true")))])
"""For all codecs: each has to do with any bytes."""

for _name in ("SegmentFormat", "RecordType", "Index", "GcPolicy", "BodyCodec", "Source", "Sink", "RoundTrip"):
    _kit = getattr(msgstore.testing, f"{_name}Tests")
    _mine = {name: subject for name, subject in _subjects.items() if subject.kind in _kit.kinds}
    _each = pytest.mark.parametrize("subject", _mine.values(), ids=_mine, scope="class")
    _members = {"__module__": __name__} | ({"samples": SAMPLES} if _name == "BodyCodec" else {})
    globals()[f"Test{_name}"] = _each(type(f"Test{_name}", (_kit,), _members))
