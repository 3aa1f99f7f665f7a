"""Vhosts for tests: flushed when a test says so, closed at its end. And tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msgstore_queues import VHost, catalogue, open_vhost

ENTRY_POINTS = functools.cache(catalogue.entry_points)
SECONDS = 30
"""After which a test that is a coroutine has failed."""


@pytest.fixture(scope="module", autouse=True)
def entry_points() -> Iterator[None]:
    """Read entry points once: each opening of a vhost would do so, which takes longer than the rest of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "entry_points", ENTRY_POINTS)
        yield


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of a test that is a coroutine, for fixtures that need it too."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run = pyfuncitem.funcargs["runner"].run if "runner" in pyfuncitem.funcargs else asyncio.run
    run(asyncio.wait_for(pyfuncitem.obj(**given), SECONDS))
    return True


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., VHost]]:
    """Open the vhost of the test; a second call closes the first one."""
    found: list[VHost] = []

    def open_again(**options: Any) -> VHost:
        while found:
            found.pop().close()
        found.append(open_vhost(tmp_path, **{"sync_interval": "365d", **options}))
        return found[-1]

    yield open_again
    for vhost in found:
        vhost.abandon()


@pytest.fixture
def vhost(opened: Callable[..., VHost]) -> VHost:
    return opened()


class Clock:
    """A clock that a test moves."""

    now = 1e9

    def passes(self, vhost: VHost, seconds: float) -> None:
        """Move it, and publish what is due then."""
        self.now += seconds
        vhost.release_due()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.time", lambda: clock.now)
    return clock
