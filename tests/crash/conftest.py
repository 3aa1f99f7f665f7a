"""The harness's processes, and what it prints at the end of a run: how many points each cell had."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import attrs
import pytest

COUNTS = pytest.StashKey[dict[str, str]]()


@attrs.frozen
class Workers:
    pool: ProcessPoolExecutor
    count: int


def quiet() -> None:
    """Every damaged segment is logged: here that is most of what happens."""
    logging.disable(logging.CRITICAL)


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Processes that open stores. Fresh ones, not forks: a fork would share what this process has open."""
    count = max(2, os.cpu_count() or 2)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=quiet) as pool:
        yield Workers(pool, count)


@pytest.fixture
def tell(request: pytest.FixtureRequest):
    """``tell(name, counts)``: a line of the summary."""
    counts = request.config.stash.setdefault(COUNTS, {})
    return counts.__setitem__


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = terminalreporter.config.stash.get(COUNTS, {})
    if counts:
        terminalreporter.section("crash harness")
        for name, line in counts.items():
            terminalreporter.line(f"{name:<38} {line}")
