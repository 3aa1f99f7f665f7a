"""Files in a broker's directory that no tool reads: recognised by name, counted, not opened."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import attrs

_KINDS = (
    ("queue indexes", "", re.compile(r"\d+\.(?:idx|qi)|journal\.jif")),
    ("queue stores", "", re.compile(r"\d+\.qs")),
    ("quorum queues", "quorum", re.compile(r"\d+\.(?:wal|segment)")),
    ("streams", "stream", re.compile(r"\d+\.(?:index|segment)")),
)
"""Kind, name of a directory above its files (none: they are in the directories of queues), and pattern of their names. Small
messages are in the indexes of version 1, and in the stores of version 2."""


@attrs.define
class NotRead:
    """Files of one kind below one directory."""

    path: str
    """Directory, such as ``.../queues``."""
    what: str
    files: int = 0
    size: int = 0
    """Bytes."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "not_read", **attrs.asdict(self)}


def find_not_read(*tops: Path) -> tuple[NotRead, ...]:
    """Search trees, and return the findings by path. A directory counts once; one that cannot be listed is ignored."""
    found: dict[tuple[Path, str], NotRead] = {}
    seen: set[str] = set()
    for top in tops:
        for directory, _, names in os.walk(top):
            if directory in seen:
                continue
            seen.add(directory)
            for what, above, pattern in _KINDS:
                theirs = list(filter(pattern.fullmatch, names))
                root = _root(top, Path(directory), above) if theirs else None
                if root is not None:
                    one = found.setdefault((root, what), NotRead(str(root), what))
                    one.files += len(theirs)
                    one.size += sum(_size(Path(directory, name)) for name in theirs)
    return tuple(found[key] for key in sorted(found))


def _root(top: Path, directory: Path, above: str) -> Path | None:
    """Return the directory of a finding in ``directory``; None if ``above`` is not between it and ``top``."""
    if not above:
        return top if directory == top else directory.parent
    way = [path for path in (directory, *directory.parents) if path.is_relative_to(top) and path.name == above]
    return way[-1] if way else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted, or a dangling link
        return 0
