"""Fixtures of the stress test: a run with a time limit."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

from stress.running import Options, Outcome, StressFiles, run
from support import in_threads

SECONDS, SECONDS_A_MESSAGE = 120, 0.0025
"""A run that takes longer hangs."""
GRACE_SECONDS = 60
"""After these a hang that holds the interpreter lock ends the process, with the stacks of all threads."""


@pytest.fixture
def run_bounded(capfd: pytest.CaptureFixture[str]):
    """``running.run``, with a limit to its time."""
    with capfd.disabled():
        stderr = os.dup(2)

    def run_it(path: Path, options: Options, files: StressFiles | None = None) -> Outcome:
        seconds = SECONDS + SECONDS_A_MESSAGE * options.messages
        outcomes: list[Outcome] = []
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=stderr)
        try:
            in_threads(lambda: outcomes.append(run(path, options, files)), seconds=seconds)
        finally:
            faulthandler.cancel_dump_traceback_later()
        return outcomes[0]

    yield run_it
    os.close(stderr)
