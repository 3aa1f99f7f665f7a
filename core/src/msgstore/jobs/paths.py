"""Paths of users: matches of globs, directories that hide matches, files below a directory, and files of rows."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgstore.contract import ConfigError, StoreIOError
from msgstore.files import check_listable, check_searchable, is_gone, stat_regular_file

is_glob = glob.has_magic


def absolute(path: str | Path) -> Path:
    """Return an absolute path without ``..``, for processes that have another working directory. Links stay links."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - absolute() keeps "..", and resolve() follows links


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


# -- files of rows ------------------------------------------------------------------------------------------------------------


def find_files(sources: Sequence[str | Path], is_wanted: Callable[[Path], bool], what: str) -> list[Path]:
    """Return the wanted files of all sources, each once; those of a directory or a glob by name.

    In a directory, at any depth, and where a glob matches them, names that begin with ``.`` or ``_`` do not count: Spark and
    pyarrow so name what is not complete. Raises ConfigError for a path without files, which are ``what``, for a link to a
    directory and for what is no regular file, StoreIOError for what cannot be listed.
    """
    found: dict[Path, Path] = {}
    for source in map(Path, sources):
        try:
            paths = [source] if source.exists() else _visible_matches(str(source))
            inner = [sorted(_visible_files(path)) if path.is_dir() else [path] for path in paths]
            files = [file for some in inner for file in some if is_wanted(file)]
        except OSError as error:
            raise StoreIOError(f"{error.filename or source}: cannot be listed: {error.strerror or error}") from error
        if not files:
            raise ConfigError(f"{source}: there is no {f'file {what}' if paths else 'such file or directory'}")
        for file in files:
            try:
                stat_regular_file(file)
            except OSError as error:
                raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _visible_matches(pattern: str) -> list[Path]:
    for directory, error in unreadable_directories(pattern):
        if not is_gone(directory, error) and not _is_hidden(directory, pattern):
            raise OSError(error.errno, error.strerror, str(directory))
    return [path for path in matches(pattern) if not _is_hidden(path, pattern)]


def _is_hidden(match: Path, pattern: str) -> bool:
    """Return True if a part of the path is hidden, and is not in the pattern."""
    given = {part for part in Path(pattern).parts if not is_glob(part)}
    return any(name[0] in "._" and name != ".." and name not in given for name in match.parts)


def _visible_files(top: Path) -> Iterator[Path]:
    for directory, inner, names in os.walk(top, onerror=_raise):
        inner[:] = [name for name in inner if name[0] not in "._"]
        for path in (Path(directory, name) for name in inner):
            if path.is_symlink():
                raise ConfigError(
                    f"{path}: is a link to a directory, which is not followed in {top}. Name the directory itself."
                )
        yield from (Path(directory, name) for name in names if name[0] not in "._")


def _raise(error: OSError) -> None:
    raise error
