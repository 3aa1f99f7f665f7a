"""Constraints for pip: of each dependency the lowest version that a pyproject.toml of the repository allows.

``python tests/oldest.py FILE`` writes them, one a line.
"""

from __future__ import annotations

import sys
import tomllib
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def oldest() -> dict[str, str]:
    """Name to version; of two lower bounds the higher one. Raises ValueError for a dependency without one."""
    found: dict[str, str] = {}
    for project in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")]):
        table = tomllib.loads(project.read_text())["project"]
        for text in chain(table.get("dependencies", []), *table.get("optional-dependencies", {}).values()):
            requirement = Requirement(text)
            lowest = [bound.version for bound in requirement.specifier if bound.operator == ">="]
            if not lowest:
                raise ValueError(f"{project}: {text!r} has no lower bound")
            if not requirement.name.startswith("msgstore"):
                found[requirement.name] = max(found.get(requirement.name, lowest[0]), *lowest, key=Version)
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(f"{name}=={version}\n" for name, version in oldest().items()))
