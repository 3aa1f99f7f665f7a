"""The faults of ``tests/seeded`` still fit the code, and the tests that they name are there; ``seeded_faults.py`` runs them."""

from __future__ import annotations

import ast
import functools
import random
import re
from typing import Any

import attrs
import pytest

from seeded_faults import FAULTS, ROOT, NotApplicable, failing_without_faults, run

MARKED = {"slow", "crash", "fuzz", "kit", "spark", "browser"}
"""Markers of the tests that are not in the fast suite."""
SAMPLE = 12


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@functools.cache
def marks(test: str) -> str:
    """Return the text of the marks of a test, of its class and of its module. Fails if there is no such test."""
    file, *names = test.split("::")
    scope: Any = parsed(file)
    found = [node for node in scope.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    for name in names:
        scope = next(node for node in scope.body if getattr(node, "name", "") == name)
        found += scope.decorator_list
    return " ".join(map(ast.unparse, found))


def test_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 111


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_fits_the_code_and_names_its_test(fault):
    fault.applied()
    marks(fault.caught_by)


def test_most_faults_are_caught_by_the_fast_suite():
    slow = [fault.name for fault in FAULTS if MARKED & set(re.findall(r"mark\.(\w+)", marks(fault.caught_by)))]
    assert len(FAULTS) - len(slow) >= 0.85 * len(FAULTS), f"only tests of marked suites catch {', '.join(slow)}"


def test_fragment_that_is_gone_is_told():
    with pytest.raises(NotApplicable, match="stands 0 times"):
        attrs.evolve(FAULTS[0], fragment="no such text").applied()


@pytest.mark.crash
def test_sample_of_faults_is_caught(sample):
    some = random.Random(sample.first).sample(FAULTS, SAMPLE)
    assert failing_without_faults(some) == ""
    results = [(fault, run(fault)[0]) for fault in some]
    survived = [f"{fault.name} ({result}): {fault.symptom}" for fault, result in results if result != "caught"]
    assert not survived, "\n".join(survived)
