"""The conformance kit finds every fault that was seeded, and nothing where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.suite import MUTANTS, ORIGINALS

pytestmark = pytest.mark.kit


def test_kit_catches_each_mutant_and_passes_originals():
    assert len({*ORIGINALS, *(mutant.name for mutant in MUTANTS)}) == len(ORIGINALS) + len(MUTANTS), "a name is used twice"
    # Not measured: the signal that ends a mutant which hangs may come while coverage holds its own lock.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-m", "mutants", "--enough", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants are caught" in done.stdout
