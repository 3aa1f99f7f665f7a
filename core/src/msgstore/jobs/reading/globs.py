"""Globs, and what they are silent about."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from msgstore.files import check_listable, check_searchable

is_glob = glob.has_magic


def matches(pattern: str) -> list[Path]:
    """By name; hidden ones too."""
    return [Path(name) for name in sorted(glob.glob(pattern, recursive=True, include_hidden=True))]  # noqa: PTH207 - a Path takes relative patterns only


def closed_ways(pattern: str) -> Iterator[tuple[Path, OSError]]:
    """The directories on the way to what matches that this process may not look into: whatever is in there does not match."""
    way = Path(pattern)
    while glob.has_magic(str(way)):
        check = check_listable if glob.has_magic(way.name) else check_searchable
        way = way.parent
        for directory in matches(str(way)):
            if os.path.isdir(directory):  # noqa: PTH112 - a Path's raises, in some versions
                try:
                    check(directory)
                except OSError as error:
                    yield directory, error
