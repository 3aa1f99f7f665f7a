"""Files of a broker's directory that no tool reads: recognised by name, counted, not opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

_OF_QUEUES = {
    "queue indexes": re.compile(r"\d+\.(?:idx|qi)|journal\.jif"),
    "queue stores": re.compile(r"\d+\.qs"),
}
"""Files in the directory of a queue. Small messages are in the indexes of version 1, and in the stores of version 2."""
_LOGS = {
    "quorum": ("quorum queues", re.compile(r"\d+\.(?:wal|segment)")),
    "stream": ("streams", re.compile(r"\d+\.(?:index|segment)")),
}
"""Name of a directory to what is in it, and to the names of files that prove it."""


@attrs.define
class NotRead:
    """Files of one kind beneath one directory."""

    path: str
    """Such as ``.../queues``."""
    what: str
    files: int = 0
    size: int = 0
    """Bytes."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "not_read", **attrs.asdict(self)}


class NotReadFinder:
    """Looks at the directories of a tree, one after the other."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()
        self._found: dict[tuple[Path, str], NotRead] = {}
        self._proved: set[tuple[Path, str]] = set()

    def look(self, top: Path, directory: Path, names: Iterable[str]) -> None:
        """``names`` of the files in ``directory``, which is ``top`` or beneath it."""
        if directory in self._seen:
            return
        self._seen.add(directory)
        names = list(names)
        for what, pattern in _OF_QUEUES.items():
            theirs = [name for name in names if pattern.fullmatch(name)]
            self._add(directory.parent if directory != top else top, what, directory, theirs, proved=bool(theirs))
        way = [path for path in reversed([directory, *directory.parents]) if path.is_relative_to(top)]
        root = next((path for path in way if path.name in _LOGS), None)
        if root is not None:
            what, pattern = _LOGS[root.name]
            self._add(root, what, directory, names, proved=any(map(pattern.fullmatch, names)))

    def _add(self, root: Path, what: str, directory: Path, names: list[str], *, proved: bool) -> None:
        if not names:
            return
        found = self._found.setdefault((root, what), NotRead(str(root), what))
        found.files += len(names)
        found.size += sum(_size(directory / name) for name in names)
        if proved:
            self._proved.add((root, what))

    def found(self) -> tuple[NotRead, ...]:
        """By path."""
        return tuple(self._found[key] for key in sorted(self._proved))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone, or a link to nothing
        return 0


def find_not_read(top: Path) -> tuple[NotRead, ...]:
    """Search a tree. Directories that cannot be listed are passed over."""
    finder = NotReadFinder()
    for directory, _, names in os.walk(top):
        finder.look(top, Path(directory), names)
    return finder.found()
