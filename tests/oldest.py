"""Constraints for pip: of each dependency the lowest version that a pyproject.toml of the repository allows.

``python tests/oldest.py FILE`` writes them, one a line.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_AT_LEAST = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def requirements(project: Path) -> Iterator[str]:
    """Of a distribution and of each of its extras."""
    table = tomllib.loads(project.read_text())["project"]
    yield from table.get("dependencies", [])
    for extra in table.get("optional-dependencies", {}).values():
        yield from extra


def oldest() -> dict[str, str]:
    """Name to version; of two lower bounds the higher one. Raises ValueError for a dependency without one."""
    found: dict[str, str] = {}
    for project in sorted(ROOT.glob("*/pyproject.toml")) + sorted(ROOT.glob("*/*/pyproject.toml")):
        for requirement in requirements(project):
            match = _AT_LEAST.match(requirement)
            if match is None:
                raise ValueError(f"{project}: {requirement!r} has no lower bound")
            name, version = match.groups()
            if not name.startswith("msgstore"):
                found[name] = max(found.get(name, version), version, key=_number)
    return found


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(f"{name}=={version}\n" for name, version in oldest().items()))
