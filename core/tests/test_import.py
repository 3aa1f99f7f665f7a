"""``import msgstore`` is next to nothing, and every public name is there when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import msgstore

HEAVY = {"attr", "cattrs", "click", "lmdb", "pluggy", "pyarrow", "pytest", "rich"}


def modules_after(code):
    """Top-level modules and those of msgstore that an interpreter has after it ran ``code``."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [("import msgstore", HEAVY), ("from msgstore import hookimpl\nimport msgstore.contract", HEAVY - {"attr", "pluggy"})],
)
def test_import_is_light(code, unwanted):
    found = modules_after(code)
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
