"""Folders of core hold few modules. import-linter checks layers and cycles: see ``pyproject.toml``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgstore

ROOT = Path(msgstore.__file__).parent
MAX_MODULES = 20
"""Modules of one folder."""


def test_folders_hold_few_modules() -> None:
    counts = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {name: count for name, count in counts.items() if count > MAX_MODULES} == {}
