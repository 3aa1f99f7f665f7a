"""Layers of core: no import cycle, also not under TYPE_CHECKING, and no folder that holds too much."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import msgstore

ROOT = Path(msgstore.__file__).parent
MAX_MODULES = 20
"""Modules of one folder."""


def modules() -> dict[str, Path]:
    """Return the path of each module by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Return the modules of core that a module imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            submodules = [name for name in names if name in known]
            yield from submodules
            if len(submodules) < len(names):
                yield node.module


def test_modules_import_each_other_without_cycle() -> None:
    known = modules()
    lazy = {"msgstore"}  # the package imports its public names when they are first used
    graph = {name: set(imports(path, known)) - {name} for name, path in known.items() if name not in lazy}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {' -> '.join(error.args[1])}") from None


def test_folders_hold_few_modules() -> None:
    folders = {path.parent for path in modules().values()}
    counts = {folder.name: len(list(folder.glob("*.py"))) - (folder / "__init__.py").exists() for folder in folders}
    assert {name: count for name, count in counts.items() if count > MAX_MODULES} == {}
