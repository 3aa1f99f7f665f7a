"""Where a job reads, and therefore writes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgstore.jobs.inputs import Found
from msgstore.jobs.reading.globs import is_glob, matches


def matched_by(paths: Iterable[str | Path]) -> list[Path]:
    """What globs among the paths match."""
    return [match for path in map(str, paths) if is_glob(path) and not Path(path).exists() for match in matches(path)]


def directories_of(paths: Iterable[str | Path], found: Found) -> list[Path]:
    """What was given, what of it a glob matches, and the directories of all segments, but for one whose segment was named
    itself: beside that there is room."""
    given = [Path(path) for path in paths]
    matched = matched_by(given)
    named = {path.parent for path in [*given, *matched] if path.is_file()}
    stores = {Path(item.store) for item in found.inputs} - named
    return [*given, *matched, *sorted(stores)]
