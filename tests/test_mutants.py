"""The conformance kit finds every fault that was seeded, and nothing where there is none: ``python -m mutants`` shows it."""

from __future__ import annotations

import pytest

from mutants.everything import MUTANTS
from mutants.running import run

pytestmark = pytest.mark.kit

ORIGINALS = sorted({mutant.original.name for mutant in MUTANTS})


@pytest.fixture(scope="module")
def outcomes():
    """Of one run of everything, by name."""
    return run(enough=1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(outcomes, mutant):
    assert outcomes[mutant.name].is_caught, f"nothing noticed that {mutant.fault}"


@pytest.mark.parametrize("name", ORIGINALS)
def test_what_has_no_fault_passes(outcomes, name):
    assert outcomes[name].is_sound, outcomes[name]


def test_each_name_is_of_one():
    names = [mutant.name for mutant in MUTANTS] + ORIGINALS
    assert len(set(names)) == len(names)
