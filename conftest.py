"""What holds for every test of the repository."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import attrs
import hypothesis
import pytest

from msgstore.config import StoreConfig
from msgstore.engine.collector import Collector

pytest_plugins = ["pytester"]

# Where others want the processor, an example may wait for it. The parent: that of tests/mutants, where it is loaded.
hypothesis.settings.register_profile(
    "untimed", parent=hypothesis.settings.default, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

_USUAL = attrs.fields(StoreConfig).gc_interval.default


def _unless_asked_for(collection, ledger, interval, size_limit):
    return Collector(collection, ledger, 0 if interval == _USUAL else interval, size_limit)


@pytest.fixture(autouse=True)
def collects_only_when_asked_to() -> Iterator[None]:
    """The usual collector comes within a second: on a slow machine between any two steps of a test. One that wants it names
    another ``gc_interval``."""
    with mock.patch("msgstore.engine.store.Collector", _unless_asked_for):
        yield
