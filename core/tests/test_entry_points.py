"""Entry points of the installed plugins are read once, and again after an installation."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest

from msgstore.plugins.loader import find_entry_points

TEXTS = {
    "METADATA": "Metadata-Version: 2.1\nName: late\nVersion: 1.0\n",
    "entry_points.txt": "[msgstore]\nlate = late_plugin\n",
}


def found() -> set[str]:
    return {provider.distribution for provider, _ in find_entry_points()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of ``sys.path``, last changed long ago."""
    os.utime(tmp_path, ns=(1, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    find_entry_points().clear()  # the list is the caller's
    return tmp_path


def test_entry_points_are_read_once_until_an_installation(site: Path) -> None:
    with mock.patch.object(metadata, "entry_points", side_effect=AssertionError("read again")):
        assert "msgstore" in found()
        assert "late" not in found()
    info = site / "late-1.0.dist-info"
    info.mkdir()
    for name, text in TEXTS.items():
        (info / name).write_text(text)
    assert "late" in found()


def test_new_finder_is_asked(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return TEXTS.get(filename)

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    class Finder(metadata.DistributionFinder):
        def find_distributions(self, context: object = None) -> list[metadata.Distribution]:
            return [Frozen()]

    monkeypatch.setattr("sys.meta_path", [*sys.meta_path, Finder()])
    assert "late" in found()
