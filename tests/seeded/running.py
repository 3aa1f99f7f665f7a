"""One pytest process for each fault, which imports a copy of the edited package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import attrs

from seeded.fault import ROOT, Fault
from seeded.imported import FILE, MODULE

OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short")
TIMEOUT_SECONDS = 300
_CAUGHT, _SURVIVED = 1, 0
"""Exit codes of pytest: a test has failed; all have passed."""
_SEED = {"MSGSTORE_TESTS_SEED": "0", "PYTHONHASHSEED": "0"}
"""For sweeps and random histories: the same each time."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py::\w+(?:::\w+)*)", re.MULTILINE)
"""A line of pytest's summary: file and function, without parameters."""

Result = Literal["caught", "survived", "not run"]


@attrs.frozen
class Outcome:
    fault: Fault
    result: Result
    """``not run``: pytest itself failed, or never ended. Such a fault proves nothing."""
    text: str
    """What pytest printed."""

    @property
    def failed_test(self) -> str:
        """The first test that failed; empty if none did."""
        found = _FAILED.search(self.text)
        return found[1] if found else ""


@contextmanager
def copied(fault: Fault) -> Iterator[Path]:
    """A directory with a copy of the package, and the fault in it."""
    with TemporaryDirectory(prefix="seeded-") as directory:
        source = fault.package
        shutil.copytree(source, Path(directory, source.name), ignore=shutil.ignore_patterns("__pycache__"))
        Path(directory, fault.file).write_text(fault.applied())
        yield Path(directory)


def run(fault: Fault, arguments: Sequence[str] = ()) -> Outcome:
    """Run the test that catches the fault, or what other ``arguments`` of pytest choose, with the fault in the code."""
    arguments = arguments or [fault.caught_by, "-m", ""]
    with copied(fault) as directory:
        environment = {MODULE: fault.module, FILE: str(directory / fault.file)}
        done = _pytest([*arguments, "-p", "seeded.imported"], [directory, ROOT / "tests"], environment)
    if done is None:
        return Outcome(fault, "not run", f"no end after {TIMEOUT_SECONDS} s")
    text = done.stdout + done.stderr
    results: dict[int, Result] = {_CAUGHT: "caught", _SURVIVED: "survived"}
    return Outcome(fault, results.get(done.returncode, "not run"), text)


def failing_without_faults(faults: Sequence[Fault]) -> str:
    """Run the tests that catch these faults on the code as it is. Return what pytest printed if one fails, else nothing."""
    tests = list(dict.fromkeys(fault.caught_by for fault in faults))
    done = _pytest([*tests, "-m", ""], [ROOT / "tests"], {})
    if done is None:
        return f"no end after {TIMEOUT_SECONDS} s"
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _pytest(
    arguments: Sequence[str], path: Sequence[Path], environment: dict[str, str]
) -> subprocess.CompletedProcess[str] | None:
    """None if it does not end."""
    found = os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
            cwd=ROOT, env={**os.environ, **_SEED, **environment, "PYTHONPATH": found},
            capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
