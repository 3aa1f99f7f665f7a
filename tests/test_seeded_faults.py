"""The faults of ``tests/seeded`` still fit the code, and the tests that they name are there; ``seeded_faults.py`` runs them."""

from __future__ import annotations

import ast
import functools
import random
from collections import Counter

import attrs
import pytest

from seeded.everything import FAULTS
from seeded.fault import ROOT, NotApplicable
from seeded.running import failing_without_faults, run

MARKED = {"slow", "crash", "fuzz", "kit", "spark", "browser"}
"""Markers of the tests that are not in the fast suite."""
SAMPLE = 12


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def functions(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Name of each test to its decorators."""
    found = {node.name: node.decorator_list for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            inner = functions(node.body)
            found |= {f"{node.name}::{name}": [*node.decorator_list, *marks] for name, marks in inner.items()}
    return found


def marks(test: str) -> set[str]:
    """Names that a test is marked with, itself or with its whole module."""
    file, _, name = test.partition("::")
    body = parsed(file).body
    whole = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    nodes = [inner for mark in [*whole, *functions(body)[name]] for inner in ast.walk(mark)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_faults_have_names_of_their_own():
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []
    assert len(FAULTS) >= 111


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_fits_the_code_and_names_its_test(fault):
    fault.applied()
    file, _, name = fault.caught_by.partition("::")
    assert (ROOT / file).is_file(), f"{fault.name} is caught by a test in {file}, which is not there"
    assert name in functions(parsed(file).body), f"{fault.name} is caught by {fault.caught_by}, which is not there"


def test_most_faults_are_caught_by_the_fast_suite():
    slow = [fault.name for fault in FAULTS if marks(fault.caught_by) & MARKED]
    assert len(FAULTS) - len(slow) >= 0.85 * len(FAULTS), f"only tests of marked suites catch {', '.join(slow)}"


def test_fragment_that_is_gone_is_told():
    with pytest.raises(NotApplicable, match="stands 0 times"):
        attrs.evolve(FAULTS[0], fragment="no such text").applied()


@pytest.mark.crash
def test_sample_of_faults_is_caught(sample):
    some = random.Random(sample.first).sample(FAULTS, SAMPLE)
    assert failing_without_faults(some) == ""
    survived = [outcome for outcome in map(run, some) if outcome.result != "caught"]
    assert not survived, "\n".join(f"{found.fault.name} ({found.result}): {found.fault.symptom}" for found in survived)
