"""The faults of ``tests/seeded`` still fit the code, and the tests that they name are there; ``seeded_faults.py`` runs them."""

from __future__ import annotations

import ast
import functools
import random
import re

import attrs
import pytest

from seeded.fault import FAULTS, ROOT, NotApplicable
from seeded_faults import failing_without_faults, run

MARKED = {"slow", "crash", "fuzz", "kit", "spark", "browser"}
"""Markers of the tests that are not in the fast suite."""
SAMPLE = 12


@functools.cache
def functions_of(file: str) -> dict[str, str]:
    """Name of each test, with its class if it is in one, to the text of the marks that it has itself, or with its module."""
    tree = ast.parse((ROOT / file).read_text())
    whole = "".join(
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    )
    found = {}
    for outer in tree.body:
        for node in outer.body if isinstance(outer, ast.ClassDef) else [outer]:
            if isinstance(node, ast.FunctionDef):
                decorators = node.decorator_list
                name = node.name
                if isinstance(outer, ast.ClassDef):
                    decorators, name = [*outer.decorator_list, *decorators], f"{outer.name}::{name}"
                found[name] = whole + " ".join(map(ast.unparse, decorators))
    return found


def marks(test: str) -> str:
    file, _, name = test.partition("::")
    return functions_of(file)[name]


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
