"""One pytest process over all mutants; what it found, mutant by mutant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

SUITE = Path(__file__).with_name("suite.py")


@attrs.frozen
class Outcome:
    """Of one subject, a mutant or what it was made of."""

    name: str
    passed: list[str]
    failed: list[str]
    """Tests whose own assertions failed: what caught it."""
    not_run: list[str]
    """Tests whose subject could not even be made: such a mutant proves nothing."""

    @property
    def is_caught(self) -> bool:
        return bool(self.failed) and not self.not_run

    @property
    def is_sound(self) -> bool:
        return bool(self.passed) and not self.failed and not self.not_run


def run(only: Iterable[str] = (), *, enough: int) -> dict[str, Outcome]:
    """Run the kit for the named subjects, or for all, each until ``enough`` tests have caught it. By name. Raises RuntimeError
    if pytest itself could not."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "outcomes.json")
        command = [sys.executable, "-m", "pytest", str(SUITE), "-q", "--tb=short", "-n0", "-m", "", "-p", "no:cacheprovider"]
        command += ["-p", "mutants.watching", "--outcomes", str(file), "--enough", str(enough)]
        for name in only:
            command += ["--only", name]
        path = os.pathsep.join([str(SUITE.parents[1]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not file.exists():
            raise RuntimeError(done.stdout + done.stderr)
        return {found["name"]: Outcome(**found) for found in json.loads(file.read_text())}
