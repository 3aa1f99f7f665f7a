"""A pytest plugin: ends the run unless the module with the fault is the one that tests import."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

MODULE, FILE = "MSGSTORE_SEEDED_MODULE", "MSGSTORE_SEEDED_FILE"
"""Environment variables: the module with the fault, and the path of its edited source."""


def pytest_collection_finish() -> None:
    module, expected = os.environ[MODULE], Path(os.environ[FILE])
    found = importlib.import_module(module).__file__
    if found is None or not expected.samefile(found):
        raise pytest.UsageError(f"{module} is imported from {found}, not from {expected}: the fault is not there")
