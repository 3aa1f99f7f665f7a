"""Entry points of the installed plugins are read once, and again after an installation."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest

from msgstore.plugins.loader import find_entry_points


def install(site: Path, name: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[msgstore]\n{name} = {name}_plugin\n")


def found() -> set[str]:
    return {provider.distribution for provider, _ in find_entry_points()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of ``sys.path``, last changed long ago."""
    os.utime(tmp_path, ns=(1, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_entry_points_are_read_once(site: Path) -> None:
    find_entry_points()
    with mock.patch.object(metadata, "entry_points", side_effect=AssertionError("read again")):
        assert "late" not in found()


def test_installation_into_running_process_is_found(site: Path) -> None:
    assert "late" not in found()
    install(site, "late")
    assert "late" in found()


def test_new_finder_is_asked(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_entry_points()

    class Frozen(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            texts = {
                "METADATA": "Metadata-Version: 2.1\nName: frozen\nVersion: 1.0\n",
                "entry_points.txt": "[msgstore]\nfrozen = frozen_plugin\n",
            }
            return texts.get(filename)

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    class Finder(metadata.DistributionFinder):
        def find_distributions(self, context: object = None) -> list[metadata.Distribution]:
            return [Frozen()]

    monkeypatch.setattr("sys.meta_path", [*sys.meta_path, Finder()])
    assert "frozen" in found()


def test_caller_may_change_the_list(site: Path) -> None:
    before = len(find_entry_points())
    find_entry_points().clear()
    assert len(find_entry_points()) == before
