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


def test_a_bare_import_imports_nothing_of_others_and_no_module_of_ours():
    found = modules_after("import msgstore")
    assert not found & HEAVY
    assert {name for name in found if name.startswith("msgstore.")} == set()


def test_a_plugin_s_import_is_light():
    assert not modules_after("from msgstore import hookimpl\nimport msgstore.contract") & (HEAVY - {"attr", "pluggy"})


@pytest.mark.parametrize("name", msgstore.__all__)
def test_every_public_name_is_there(name):
    assert getattr(msgstore, name).__module__.startswith("msgstore.") or name == "hookimpl"
    assert name in dir(msgstore)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'open_shop'"):
        msgstore.open_shop  # noqa: B018
    with pytest.raises(ImportError, match="open_shop"):
        exec("from msgstore import open_shop")
