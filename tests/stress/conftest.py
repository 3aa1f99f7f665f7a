"""Fixtures of the stress test: a run with a time limit."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from stress.running import Options, Outcome, StressFiles, run
from stress.watchdog import bounded

SECONDS, SECONDS_A_MESSAGE = 120, 0.0025
"""A run that takes longer hangs."""


@pytest.fixture
def run_bounded(capfd: pytest.CaptureFixture[str]):
    """``running.run``, with a limit to its time."""
    with capfd.disabled():
        stderr = os.dup(2)

    def run_it(path: Path, options: Options, files: StressFiles | None = None) -> Outcome:
        return bounded(partial(run, path, options, files), SECONDS + SECONDS_A_MESSAGE * options.messages, stderr)

    yield run_it
    os.close(stderr)
