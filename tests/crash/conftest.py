"""Fixtures of the crash harness: its processes, and a line of the summary for each cell."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from crash.points import Workers


def quiet() -> None:
    """Every damaged segment is logged: here that is most of what happens."""
    logging.disable(logging.CRITICAL)


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    count = max(2, os.cpu_count() or 2)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=quiet) as pool:
        yield Workers(pool, count)


@pytest.fixture
def tell(report: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Return ``tell(name, counts)``, which adds a line to the summary."""
    return lambda name, counts: report("crash harness", f"{name:<38} {counts}")
