"""Inputs of a job: resolve paths to segments that any process can read, in order of preference, with their record types."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from msgstore.contract import PluginError, RecordTypeDescriptor, StoreError
from msgstore.directory import SETTINGS, DamagedSettings, Settings, read_settings, unread_segments
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.files import Files, is_gone, stat_regular_file
from msgstore.jobs.not_read import NotRead, find_not_read
from msgstore.jobs.paths import is_glob, matches, unreadable_directories
from msgstore.jobs.reports import SETTINGS_DAMAGED, Findings, SpanReport
from msgstore.jobs.workers import installed
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, OpenFormat

log = logging.getLogger("msgstore.bulk")

_UNFINISHED = re.compile(r"\..+\.msgstore")
"""Names of staging directories. They hold copies of messages, and may be left by a killed job."""
_NO_NUMBER = -1
_NAMED = 10
"""Number of directories that a message names."""
_IS_DIRECTORY = IsADirectoryError(errno.EISDIR, "is a directory")


@attrs.frozen
class SegmentInput:
    """A segment to read. Small and picklable: it names the format, and each process creates it."""

    rank: int
    """Position in the job. Of several intact copies of an id, the one with the lowest rank and offset is kept."""
    store: str
    """Its directory, as given or found."""
    path: str
    format: str
    """Name of the segment format."""
    size: int
    """Bytes when it was listed. A writer may append to it, and a collector may delete it."""
    records: tuple[tuple[str, int], ...] = ()
    """(name, type byte) of the record types that its directory binds and its format knows."""
    distributions: tuple[tuple[str, str], ...] = ()
    """(backend, distribution) pairs that ``msgstore.json`` remembers, for "pip install" lines."""


@attrs.frozen
class Found:
    """Segments that a job reads, and findings of the search for them."""

    inputs: tuple[SegmentInput, ...]
    """By rank."""
    damage: tuple[SpanReport, ...]
    """Unreadable ``msgstore.json`` files (``settings_damaged``). With size 0 (``unreadable: ...``): names of segments that are
    not regular files or cannot be examined, and directories of a tree or a glob that cannot be listed."""
    ignored: tuple[str, ...]
    """Other files in the directories of segments."""
    codecs: tuple[str, ...]
    """Body codecs that the directories remember, each once."""
    record_types: tuple[str, ...] = ()
    """Record types of new messages that the directories remember, each once."""
    unknown: tuple[str, ...] = ()
    """Directories with no readable ``msgstore.json``, such as RabbitMQ's."""
    not_read: tuple[NotRead, ...] = ()
    """Files of brokers in the searched trees that no job reads. A directory with segments is not searched for them."""

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return sum(item.size for item in self.inputs)

    def add_to(self, report: Findings) -> None:
        """Add the findings to the report of a job."""
        report.damage += self.damage
        report.ignored += self.ignored
        report.not_read += self.not_read


@attrs.frozen
class SegmentJob:
    """Base of the jobs that read one group of segments."""

    sources: tuple[str, ...]
    """Paths as they were given."""
    found: Found

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.found.size


def find_inputs(catalogue: Catalogue, paths: Iterable[str | Path], *, records: Mapping[str, int] | None = None) -> Found:
    """Return the segments of ``paths``. Each is a segment, a directory of segments, a tree of such directories, or a glob.

    Ranks: stores in the order given, those of a tree or a glob by name; in a store the highest number first, and files without
    a number last. A segment that is reached twice counts once. A directory with segments stands for these only. Directories
    below it are omitted, with a warning: they may be older copies, and removed messages would return. Any other directory is a
    tree, and stands for all stores below it, nested or hidden; symbolic links to directories are not followed. A glob matches
    hidden names. ``records`` are bound in addition to the remembered bindings of each directory, and override them.

    An unreadable name or directory in a directory, a tree or a glob is damage, and the others are read. The stores may be open
    for writing. Raises StoreError for a path without segments, and PluginError for segments with a record type that no plugin
    provides.
    """
    search = _Search(catalogue, dict(records or {}))
    for path in paths:
        search.add(str(path))
    return search.found()


def open_input(found: SegmentInput) -> OpenFormat:
    """Return the format of a segment. It is created once in each process for all segments with the same record types.

    Raises PluginError if this process lacks a plugin that the process which found the segment had.
    """
    key = found.format, found.records, found.distributions
    if key not in _opened:
        _opened[key] = _make(installed(), found)
    return _opened[key]


_opened: dict[object, OpenFormat] = {}


def _make(catalogue: Catalogue, found: SegmentInput) -> OpenFormat:
    try:
        return FormatSet(attrs.evolve(catalogue, remembered=dict(found.distributions)), dict(found.records)).by_name(
            found.format
        )
    except PluginError as error:
        raise type(error)(f"{found.path}: {error}") from error


class _Search:
    """Search for segments. Collects their names by directory, in the order in which the directories are found."""

    def __init__(self, catalogue: Catalogue, records: Mapping[str, int]) -> None:
        self._catalogue = catalogue
        self._records = records
        self._files = Files()
        self._formats = FormatSet(catalogue)
        self._stores: dict[Path, tuple[str, dict[str, int]]] = {}
        """Real path to (path as given, name to size)."""
        self._damage: dict[Path, SpanReport] = {}
        """Real path, in which the last part may be a link, to its damage."""
        self._ignored: dict[str, None] = {}
        self._beneath_stores: set[Path] = set()
        """Directories with segments below a directory with segments."""
        self._makeable: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
        """Formats with record types that could be created."""
        self._trees: list[Path] = []

    def add(self, given: str) -> None:
        """Add the segments of a path. Raises StoreError if there are none."""
        path, known, found = Path(given), len(self._damage), False
        if path.exists():
            if not (path.is_dir() or path.is_file()):
                raise StoreError(f"{given}: is neither a regular file nor a directory; copy what it holds into a file")
            paths = [path]
        elif is_glob(given):
            for directory, error in unreadable_directories(given):
                if not _is_unfinished(directory):
                    self._refuse(directory, error)
            paths = [match for match in matches(given) if not _is_unfinished(match)]
        else:
            raise StoreError(f"{given}: there is no such file or directory")
        for match in paths:
            if _real(match.parent) not in self._damage:
                found |= self._add_path(match)
        if not found:
            refused = [f"; {one.path} is {one.reason}" for one in self._damage.values()][known:]
            raise StoreError(self._nothing_in(path) + "".join(refused[:1]))

    def _nothing_in(self, path: Path) -> str:
        if path.is_dir():
            return no_segments(path, self._formats)
        if path.is_file():
            formats = ", ".join(f"*{extension} ({name})" for extension, name in sorted(self._formats.extensions.items()))
            return f"{path}: no installed format reads such files; known are {formats or 'none'}"
        return f"{path}: nothing that matches is a segment ({_known(self._formats)}), or a directory that has some"

    def _add_path(self, path: Path) -> bool:
        """Add a path that exists. Return True if it has the name of a segment, or is a directory with one."""
        is_segment, is_directory = self._is_segment(path.name), os.path.isdir(path)  # noqa: PTH112 - a Path's raises, in some versions
        try:
            if is_directory:
                if self._add_directory(path):
                    return True
                if is_segment:
                    self._refuse(path, _IS_DIRECTORY)
            elif is_segment:
                self._names(path.parent).setdefault(path.name, stat_regular_file(path)[0])
                return True
            elif self._unread(path.parent, [path.name]):
                self._refuse_unread(path)
            else:
                self._ignored[str(path)] = None
        except OSError as error:
            return self._refuse(path, error) and not is_directory
        return False

    def _add_directory(self, top: Path) -> bool:
        """Add a directory. Return True if it is a store, or a tree with one. Raises OSError if it cannot be listed."""
        if self._add_store(top):
            self._beneath_stores.update(stores_beneath(top, self._formats))
            return True
        stores: list[Path] = []
        others: list[Path] = []
        for directory in self._beneath(top):
            try:
                (stores if self._add_store(directory) else others).append(directory)
            except OSError as error:
                self._refuse(directory, error)
        for directory in others:
            if self._is_segment(directory.name) and not any(store.is_relative_to(directory) for store in stores):
                self._refuse(directory, _IS_DIRECTORY)
        return bool(stores)

    def _beneath(self, top: Path) -> Iterator[Path]:
        """Yield the directories of a tree by name, without links and staging directories."""
        self._trees.append(top)
        for directory, names, _ in os.walk(top, onerror=lambda error: self._refuse(Path(error.filename or top), error)):
            names[:] = sorted(name for name in names if not _UNFINISHED.fullmatch(name))
            if Path(directory) != top:
                yield Path(directory)

    def _refuse(self, path: Path, error: OSError) -> bool:
        """Report an unreadable path as damage, once. Return False if it does not exist any more."""
        if is_gone(path, error):
            return False
        reason = "is a link to nothing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        if _real(path.parent) not in self._damage:  # the damage of a directory stands for everything in it
            self._damage.setdefault(_real(path), SpanReport(str(path), 0, 0, f"unreadable: {reason}"))
        return True

    def _is_segment(self, name: str) -> bool:
        return Path(name).suffix in self._formats.extensions

    def _add_store(self, directory: Path) -> bool:
        """Add a store. Return True if it has segments, or is a store without any. Raises OSError."""
        listed, refused = self._files.entries(directory)
        files = listed.keys() | {name for name, error in refused.items() if error.errno != errno.EISDIR}
        unread = self._unread(directory, files)
        if not any(map(self._is_segment, files)) and not unread and SETTINGS not in files and CLEAN not in files:
            return False
        self._names(directory).update({name: size for name, (size, _) in listed.items() if self._is_segment(name)})
        for name in sorted(filter(self._is_segment, refused), key=_age, reverse=True):
            self._refuse(directory / name, refused[name])
        for name in unread:
            self._refuse_unread(directory / name)
        others = sorted(name for name in files.difference(unread) if not self._is_segment(name))
        self._ignored |= dict.fromkeys(str(directory / name) for name in others)
        return True

    def _unread(self, directory: Path, files: Iterable[str]) -> list[str]:
        """Return the names of segments of formats that are not installed."""
        if not unread_segments(files, self._formats.extensions):
            return []
        try:
            settings = read_settings(self._files, directory)
        except (StoreError, OSError):
            settings = None
        return sorted(self._formats.unread(files, settings))

    def _refuse_unread(self, path: Path) -> None:
        self._refuse(path, OSError(errno.ENOTSUP, f"no installed format reads *{path.suffix}"))

    def _names(self, directory: Path) -> dict[str, int]:
        return self._stores.setdefault(directory.resolve(), (str(directory), {}))[1]

    def found(self) -> Found:
        left = [str(path) for path in sorted(self._beneath_stores) if path.resolve() not in self._stores]
        if left:
            log.warning(
                "left out, beneath directories that have segments of their own: %s; name them as well to read them", _some(left)
            )
        inputs: list[SegmentInput] = []
        known: dict[str, Settings] = {}
        for store, names in self._stores.values():
            try:
                settings = read_settings(self._files, Path(store))
            except (StoreError, OSError) as error:
                copy = error.copy if isinstance(error, DamagedSettings) else None
                settings = self._without_settings(Path(store, SETTINGS), copy)
            else:
                known |= {store: settings} if settings else {}
            for name in sorted(names, key=_age, reverse=True):
                inputs.append(self._input(len(inputs), store, name, names[name], settings or Settings()))
        return Found(
            tuple(inputs),
            tuple(self._damage.values()),
            tuple(self._ignored),
            codecs=tuple(dict.fromkeys(settings.body for settings in known.values())),
            record_types=tuple(dict.fromkeys(settings.record for settings in known.values())),
            unknown=tuple(store for store, _ in self._stores.values() if store not in known),
            not_read=find_not_read(*self._trees),
        )

    def _without_settings(self, damaged: Path, copy: Settings | None) -> Settings:
        """Return the settings to use for a damaged file: its copy, or bindings of all record types with an assigned byte."""
        try:
            size, _ = stat_regular_file(damaged)
        except OSError:
            size = 0
        self._damage[_real(damaged)] = SpanReport(str(damaged), 0, size, SETTINGS_DAMAGED)
        if copy is not None:
            return copy
        assigned = {found.name: found.assigned_byte for found in self._record_types() if found.assigned_byte is not None}
        return Settings(records=assigned)

    def _record_types(self) -> Iterator[RecordTypeDescriptor]:
        for found in self._catalogue.registrations:
            if isinstance(found.descriptor, RecordTypeDescriptor):
                yield found.descriptor

    def _input(self, rank: int, store: str, name: str, size: int, settings: Settings) -> SegmentInput:
        path = str(Path(store, name))
        format_name = self._formats.extensions[Path(name).suffix]
        remembered = {record: byte for record, byte in settings.records.items() if byte not in self._records.values()}
        bindings = self._known_to(format_name, remembered | dict(self._records))
        found = SegmentInput(rank, store, path, format_name, size, bindings, tuple(sorted(settings.distributions.items())))
        if (found.format, found.records) not in self._makeable:
            _make(self._catalogue, found)
            self._makeable.add((found.format, found.records))
        return found

    def _known_to(self, format_name: str, bindings: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """Return the bindings without record types of other formats. A type without a provider stays, and is an error."""
        formats = {record: {d.format for d in self._record_types() if d.name == record} for record in bindings}
        return tuple(
            (record, byte) for record, byte in sorted(bindings.items()) if not formats[record] or format_name in formats[record]
        )


def _real(path: Path) -> Path:
    """Return the real directory and the name. A link and its target are different."""
    return path.parent.resolve() / path.name


def _is_unfinished(path: Path) -> bool:
    return any(_UNFINISHED.fullmatch(part) for part in path.parts)


def _age(name: str) -> tuple[int, str, str]:
    path = Path(name)
    number = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else _NO_NUMBER
    return number, path.suffix, name


def no_segments(directory: Path, formats: FormatSet) -> str:
    """Return the error message for a directory without segments. It names directories below that have some."""
    beneath = [path.relative_to(directory).as_posix() for path in stores_beneath(directory, formats)]
    message = f"{directory}: there are no segments in this directory ({_known(formats)})"
    if beneath:
        message += f"; directories beneath it that have some: {_some(beneath)}"
    found = find_not_read(directory)
    if found:
        message += f"; not read by msgstore: {_some([f'{one.path} ({one.what}, {one.size:,} bytes)' for one in found])}"
    return message


def _known(formats: FormatSet) -> str:
    return ", ".join(f"*{extension}" for extension in sorted(formats.extensions)) or "no format is installed"


def _some(directories: list[str]) -> str:
    """Return a text with the first directories, and the number of the others."""
    more = f" and {len(directories) - _NAMED} more" if len(directories) > _NAMED else ""
    return ", ".join(directories[:_NAMED]) + more


def stores_beneath(directory: Path, formats: FormatSet) -> list[Path]:
    """Return the directories below one that have segments, by name. Staging directories do not count."""
    return [
        Path(path)
        for path, _, names in sorted(os.walk(directory))
        if Path(path) != directory
        and not _is_unfinished(Path(path).relative_to(directory))
        and any(Path(name).suffix in formats.extensions for name in names)
    ]
