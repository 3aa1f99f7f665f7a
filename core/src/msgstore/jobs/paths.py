"""Paths of users: matches of globs, directories that hide matches, and files below a directory."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgstore.contract import MsgStoreError
from msgstore.files import check_listable, check_searchable

is_glob = glob.has_magic


def matches(pattern: str) -> list[Path]:
    """Return the matches of a glob by name, including hidden names."""
    return [Path(name) for name in sorted(glob.glob(pattern, recursive=True, include_hidden=True))]  # noqa: PTH207 - a Path takes relative patterns only


def unreadable_directories(pattern: str) -> Iterator[tuple[Path, OSError]]:
    """Yield the directories in which this process may not search for matches, with the error."""
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


def matched_by(paths: Iterable[str | Path]) -> list[Path]:
    """Return the matches of the globs among ``paths``."""
    return [match for path in map(str, paths) if is_glob(path) and not Path(path).exists() for match in matches(path)]


def visible_files(top: Path, error: type[MsgStoreError]) -> Iterator[Path]:
    """Yield the files below ``top``, except those with a name, or in a directory with a name, that begins with ``_`` or ``.``.

    Spark and pyarrow name so what is not complete. Raises OSError for a directory that cannot be listed, and ``error`` for a
    link to one.
    """
    for directory, inner, names in os.walk(top, onerror=_raise):
        inner[:] = [name for name in inner if name[0] not in "._"]
        for path in (Path(directory, name) for name in inner):
            if path.is_symlink():
                raise error(f"{path}: is a link to a directory, which is not followed in {top}. Name the directory itself.")
        yield from (Path(directory, name) for name in names if name[0] not in "._")


def _raise(error: OSError) -> None:
    raise error
