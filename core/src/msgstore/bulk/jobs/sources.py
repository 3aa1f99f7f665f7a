"""Where a job reads, and therefore writes nothing."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from msgstore.bulk.inputs import Found


def directories_of(paths: Iterable[str | Path], found: Found) -> list[Path]:
    """What was given, what of it a glob matches, and the directories of all segments, but for one whose segment was named
    itself: beside that there is room."""
    given = [Path(path) for path in paths]
    matches = [
        Path(match)
        for path in given
        if not path.exists() and glob.has_magic(str(path))
        for match in glob.glob(str(path), recursive=True, include_hidden=True)  # noqa: PTH207 - a Path takes relative patterns only
    ]
    named = {path.parent for path in [*given, *matches] if path.is_file()}
    stores = {Path(item.store) for item in found.inputs} - named
    return [*given, *matches, *sorted(stores)]
