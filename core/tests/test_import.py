"""``import msgstore`` is next to nothing, every public name is there, and plugins are found once they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import msgstore
from msgstore.plugins import loader
from msgstore.plugins.loader import Provider, find_entry_points, load, load_once

HEAVY = {"attr", "cattrs", "click", "lmdb", "pluggy", "pyarrow", "pytest", "rich"}


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [("import msgstore", HEAVY), ("from msgstore import hookimpl\nimport msgstore.contract", HEAVY - {"attr", "pluggy"})],
)
def test_import_is_light(code, unwanted):
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    found = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert not found & unwanted
    assert "contract" in code or not [name for name in found if name.startswith("msgstore.")]


def test_public_names_are_there_and_no_others():
    for name in msgstore.__all__:
        assert getattr(msgstore, name).__module__.startswith("msgstore.") or name == "hookimpl"
        assert name in dir(msgstore)
    with pytest.raises(AttributeError, match="no attribute 'open_shop'"):
        msgstore.open_shop  # noqa: B018
    with pytest.raises(ImportError, match="open_shop"):
        exec("from msgstore import open_shop")


def texts(name: str) -> dict[str, str]:
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "entry_points.txt": f"[msgstore]\n{name} = {name}_plugin\n",
    }


class Frozen(metadata.Distribution):
    def read_text(self, filename: str) -> str | None:
        return texts("late").get(filename)

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


class Finder(metadata.DistributionFinder):
    def find_distributions(self, context: object = None) -> list[metadata.Distribution]:
        return [Frozen()]


@pytest.mark.parametrize("by", ["installation", "finder"])
def test_entry_points_are_read_once_until_change(tmp_path, monkeypatch, by):
    def found() -> set[str]:
        return {provider.distribution for provider, _ in find_entry_points()}

    def install(name: str) -> None:
        for file, text in texts(name).items():
            (tmp_path / f"{name}-1.0.dist-info" / file).write_text(text)

    (tmp_path / "early-1.0.dist-info").mkdir()
    install("early")
    os.utime(tmp_path, ns=(1, 1))  # last changed long ago
    monkeypatch.setattr("sys.path", [str(tmp_path)])  # no directory that another process may change now
    find_entry_points().clear()  # the list is the caller's
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "entry_points", lambda **_: pytest.fail("they are read again"))
        assert found() == {"early"}
    if by == "finder":
        monkeypatch.setattr("sys.meta_path", [*sys.meta_path, Finder()])
    else:
        (tmp_path / "late-1.0.dist-info").mkdir()
        assert "late" not in found()  # and now its files come, which do not change the directory above
        install("late")
    assert "late" in found()


def test_plugins_are_loaded_once_unless_one_fails(monkeypatch):
    acme = Provider("acme", "1.0", "builtin", "msgstore.builtin.plugin")
    found = [(acme, metadata.EntryPoint("builtin", acme.value, "msgstore"))]
    broken = [(acme, metadata.EntryPoint("absent", "acme_absent", "msgstore"))]
    monkeypatch.setattr(loader, "_KEPT", {})
    once = load_once(found)
    assert load_once(list(found)) is once
    assert load_once([(acme, found[0][1])]) is not once  # another reading of the installation
    assert load_once(found, ("builtin",)).registrations == ()
    assert load_once(broken) is not load_once(broken)
    assert load_once(broken).failures


def test_plugin_with_lazy_names_imports_none(tmp_path, monkeypatch):
    (tmp_path / "acme_lazy.py").write_text(
        "from msgstore import hookimpl\n@hookimpl\ndef msgstore_indexes(): return []\n"
        "def __dir__(): return ['msgstore_indexes', 'Heavy']\ndef __getattr__(name): raise KeyError(name)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    acme = Provider("acme", "1.0", "lazy", "acme_lazy")
    loaded = load([(acme, metadata.EntryPoint("lazy", "acme_lazy", "msgstore"))])
    assert (loaded.failures, loaded.providers) == ((), (acme,))
