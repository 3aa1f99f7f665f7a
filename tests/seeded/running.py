"""One pytest process for each fault, which imports a copy of the edited package. It uses this module as a plugin."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest

from seeded.fault import ROOT, Fault

OPTIONS = ("-x", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--tb=short")
TIMEOUT_SECONDS = 300
_RESULTS = {1: "caught", 0: "survived"}
"""Exit code of pytest to the result: a test has failed; all have passed."""
_SEED = {"MSGSTORE_TESTS_SEED": "0", "PYTHONHASHSEED": "0"}
"""For sweeps and random histories: the same each time."""
MODULE, FILE = "MSGSTORE_SEEDED_MODULE", "MSGSTORE_SEEDED_FILE"
"""Environment variables: the module with the fault, and the path of its edited source."""


@attrs.frozen
class Outcome:
    fault: Fault
    result: str
    """``caught``, ``survived``, or ``not run``: pytest itself failed, or never ended. Such a fault proves nothing."""
    text: str
    """What pytest printed."""


def run(fault: Fault) -> Outcome:
    """Run the test that catches the fault with the fault in the code."""
    sources = next(path for path in fault.path.parents if path.name == "src")
    package = fault.module.partition(".")[0]
    with TemporaryDirectory(prefix="seeded-") as directory:
        shutil.copytree(sources / package, Path(directory, package), ignore=shutil.ignore_patterns("__pycache__"))
        edited = Path(directory, fault.path.relative_to(sources))
        edited.write_text(fault.applied())
        environment = {MODULE: fault.module, FILE: str(edited)}
        code, text = _pytest([fault.caught_by, "-p", "seeded.running"], [directory, str(ROOT / "tests")], environment)
    return Outcome(fault, _RESULTS.get(code, "not run"), text)


def failing_without_faults(faults: Sequence[Fault]) -> str:
    """Run the tests that catch these faults on the code as it is. Return what pytest printed if one fails, else nothing."""
    tests = list(dict.fromkeys(fault.caught_by for fault in faults))
    code, text = _pytest(tests, [str(ROOT / "tests")], {})
    return text if code else ""


def _pytest(arguments: Sequence[str], path: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and what was printed; -1 if pytest does not end."""
    found = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
            cwd=ROOT, env={**os.environ, **_SEED, **environment, "PYTHONPATH": found},
            capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIMEOUT_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def pytest_collection_finish() -> None:
    """End the run unless the module with the fault is the one that tests import."""
    module, expected = os.environ[MODULE], Path(os.environ[FILE])
    found = importlib.import_module(module).__file__
    if found is None or not expected.samefile(found):
        raise pytest.UsageError(f"{module} is imported from {found}, not from {expected}: the fault is not there")
