"""What the stress test's tests share: the watchdog's limit, and the lines at the end of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stress.running import Options, Outcome, StressFiles, run
from stress.watchdog import bounded

LINES = pytest.StashKey[dict[str, str]]()
SECONDS, SECONDS_A_MESSAGE = 120, 0.0025
"""A run that takes longer hangs."""


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str, Outcome], None]:
    """``tell(name, outcome)``: a line of the summary."""
    lines = request.config.stash.setdefault(LINES, {})
    return lambda name, outcome: lines.__setitem__(name, str(outcome))


@pytest.fixture
def run_bounded(capfd: pytest.CaptureFixture[str]):
    """``running.run``, with a limit to its time."""
    with capfd.disabled():
        stderr = os.dup(2)

    def run_it(path: Path, options: Options, files: StressFiles | None = None) -> Outcome:
        return bounded(partial(run, path, options, files), SECONDS + SECONDS_A_MESSAGE * options.messages, stderr)

    yield run_it
    os.close(stderr)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(LINES, {})
    if lines:
        terminalreporter.section("stress")
        for name, line in lines.items():
            terminalreporter.line(f"{name}: {line}")
