"""``python tests/seeded_faults.py [--only NAME]``: which of the faults in ``tests/seeded`` the tests catch.

Each fault is an edit of one function. It is applied to a copy of the package, and the test that catches it runs against the
copy, in a pytest process that uses this module as a plugin. Exit code 1 if a fault survives, or a test fails without any fault.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seeded.fault import FAULTS, ROOT, Fault

OPTIONS = ("-x", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--tb=short")
TIMEOUT_SECONDS = 300
_RESULTS = {1: "caught", 0: "survived"}
"""Exit code of pytest to the result: a test has failed; all have passed."""
_SEED = {"MSGSTORE_TESTS_SEED": "0", "PYTHONHASHSEED": "0"}
"""For sweeps and random histories: the same each time."""
MODULE, FILE = "MSGSTORE_SEEDED_MODULE", "MSGSTORE_SEEDED_FILE"
"""Environment variables: the module with the fault, and the path of its edited source."""


def run(fault: Fault) -> tuple[str, str]:
    """Run the test that catches the fault with the fault in the code. Return the result and what pytest printed.

    The result is ``caught``, ``survived``, or ``not run``: pytest itself failed, or never ended. Such a fault proves nothing.
    """
    sources = next(path for path in fault.path.parents if path.name == "src")
    package = fault.module.partition(".")[0]
    with TemporaryDirectory(prefix="seeded-") as directory:
        shutil.copytree(sources / package, Path(directory, package), ignore=shutil.ignore_patterns("__pycache__"))
        edited = Path(directory, fault.path.relative_to(sources))
        edited.write_text(fault.applied())
        environment = {MODULE: fault.module, FILE: str(edited)}
        code, text = _pytest([fault.caught_by, "-p", "seeded_faults"], [directory], environment)
    return _RESULTS.get(code, "not run"), text


def failing_without_faults(faults: Sequence[Fault]) -> str:
    """Run the tests that catch these faults on the code as it is. Return what pytest printed if one fails, else nothing."""
    code, text = _pytest(list(dict.fromkeys(fault.caught_by for fault in faults)), [], {})
    return text if code else ""


def _pytest(arguments: Sequence[str], path: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and what was printed; -1 if pytest does not end."""
    found = os.pathsep.join([*path, str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH", "")])])
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="seeded_faults", description="Put faults into the code, and see which tests fail.")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help="this fault; repeatable")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    if text := failing_without_faults(faults):
        print(text, "a test fails without any fault: what it says of faults is worth nothing", sep="\n")
        return 1
    caught = 0
    for fault in faults:
        result, text = run(fault)
        print(f"{result:9} {fault.name}: {fault.caught_by}", flush=True)
        caught += result == "caught"
        if result != "caught":
            print(f"          {fault.symptom}\n{text}")
    print(f"{len(faults)} faults, {caught} caught")
    return int(caught < len(faults))


if __name__ == "__main__":
    sys.exit(main())
