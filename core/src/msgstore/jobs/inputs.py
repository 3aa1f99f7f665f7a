"""From paths to segments that any process can read: which there are, in which order, and with which record types."""

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
from msgstore.jobs.not_read import NotRead, NotReadFinder, find_not_read
from msgstore.jobs.paths import is_glob, matches, unreadable_directories
from msgstore.jobs.reports import SETTINGS_DAMAGED, Findings, SpanReport
from msgstore.jobs.workers import installed
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, OpenFormat

log = logging.getLogger("msgstore.bulk")

_UNFINISHED = re.compile(r"\..+\.msgstore-[0-9a-f]+")
"""Directories in which a job of ours builds a store, or was killed while it did: copies of what stands elsewhere."""
_NO_NUMBER = -1
_NAMED = 10
"""Directories that a message names."""
_IS_DIRECTORY = IsADirectoryError(errno.EISDIR, "is a directory")


@attrs.frozen
class SegmentInput:
    """A segment, small and picklable; a worker makes the format anew out of it."""

    rank: int
    """Unique in a job. Of copies of an id the lowest rank's good one is kept, in one segment the lowest offset's."""
    store: str
    """Its directory, as it was given or found."""
    path: str
    format: str
    """The name of its segment format."""
    size: int
    """Bytes when it was listed. A live store's last segment grows, and a collector may have deleted it since."""
    records: tuple[tuple[str, int], ...] = ()
    """(name, type byte) of the record types bound in its directory that its format knows."""
    distributions: tuple[tuple[str, str], ...] = ()
    """What its ``msgstore.json`` remembers of who provided what, for "pip install" lines."""


@attrs.frozen
class Found:
    """All that a job reads, and what was noticed while it was looked for."""

    inputs: tuple[SegmentInput, ...]
    """By rank."""
    damage: tuple[SpanReport, ...]
    """``msgstore.json`` files that cannot be read (``settings_damaged``); of size 0 (``unreadable: ...``) what has a segment's
    name and is no file or cannot be looked at, and directories of a tree or a glob that cannot be listed."""
    ignored: tuple[str, ...]
    """In the directories of segments, what is no directory and has no name of a segment of an installed format."""
    codecs: tuple[str, ...]
    """Body codecs that the directories remember, each once."""
    record_types: tuple[str, ...] = ()
    """What they remember that new messages are written as, each once."""
    unknown: tuple[str, ...] = ()
    """Directories that remember nothing, such as RabbitMQ's."""
    not_read: tuple[NotRead, ...] = ()
    """In trees, what a broker has beside its message stores and no job reads. A directory of segments is not searched."""

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return sum(item.size for item in self.inputs)

    def add_to(self, report: Findings) -> None:
        """Add what was noticed to the report of a job."""
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
    """The segments of ``paths``, each of which is a segment, a directory of segments, a tree of such directories, or a glob.

    Ranks: stores in the order given, those of a tree or a glob by name; in a store the highest number first, files without a
    number last. What is reached twice counts once. A directory that is given, or matches, and has segments of its own, stands
    for these only; others beneath it are left out, with a warning: they may be copies of another day, and what was removed
    since would come back. A tree is any other directory, and stands for all that is beneath it, stores in stores too: its
    hidden directories count, symbolic links to directories do not. A glob sees hidden names too. ``records`` are bound beside
    what each directory remembers, and instead of it where the two contradict.

    What is wrong with one name in a directory, or with one directory of a tree or a glob, is damage, and the others are read.
    A writer may be at work in a directory. Raises StoreError for a path in which there is nothing, and PluginError for segments
    with records of a type that nobody provides: before the job begins.
    """
    search = _Search(catalogue, dict(records or {}))
    for path in paths:
        search.add(str(path))
    return search.found()


def open_input(found: SegmentInput) -> OpenFormat:
    """The format of a segment, by the plugins of this process: made once for all segments of the same record types.

    Raises PluginError if they lack something that the process which found the segment had.
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
    """Names of segments by their directory, in the order in which directories turned up."""

    def __init__(self, catalogue: Catalogue, records: Mapping[str, int]) -> None:
        self._catalogue = catalogue
        self._records = records
        self._files = Files()
        self._formats = FormatSet(catalogue)
        self._stores: dict[Path, tuple[str, dict[str, int]]] = {}
        """Real path to (path as given, name to size)."""
        self._damage: dict[Path, SpanReport] = {}
        """By real path, less links in the last part."""
        self._ignored: dict[str, None] = {}
        self._beneath_stores: set[Path] = set()
        """Directories with segments, in one that stands for its own."""
        self._makeable: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
        """Formats with record types that could be made."""
        self._not_read = NotReadFinder()

    def add(self, given: str) -> None:
        """Raises StoreError if there is nothing."""
        path, known = Path(given), len(self._damage)
        if path.is_file():
            if not self._is_segment(path.name):
                formats = ", ".join(f"*{extension} ({name})" for extension, name in sorted(self._formats.extensions.items()))
                raise StoreError(f"{path}: no installed format reads such files; known are {formats or 'none'}")
            self._names(path.parent).setdefault(path.name, path.stat().st_size)
        elif path.is_dir():
            try:
                found = self._add_directory(path)
            except OSError as error:
                raise StoreError(f"{path}: cannot be listed: {error.strerror}") from error
            if not found:
                raise StoreError(no_segments(path, self._formats) + self._refused_since(known))
        elif path.exists():
            raise StoreError(f"{given}: is neither a regular file nor a directory; copy what it holds into a file")
        elif not is_glob(given):
            raise StoreError(f"{given}: there is no such file or directory")
        elif not self._add_matches(given):
            message = f"{given}: nothing that matches is a segment ({_known(self._formats)}), or a directory that has some"
            raise StoreError(message + self._refused_since(known))

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
        """The directories of a tree by name, links and unfinished stores left out."""
        for directory, names, files in os.walk(top, onerror=lambda error: self._refuse(Path(error.filename or top), error)):
            names[:] = sorted(name for name in names if not _UNFINISHED.fullmatch(name))
            self._not_read.look(top, Path(directory), files)
            if Path(directory) != top:
                yield Path(directory)

    def _refuse(self, path: Path, error: OSError) -> bool:
        """Tell of what cannot be read, or a job would say that all is well. Whether it is there: what went meanwhile is not."""
        if is_gone(path, error):
            return False
        reason = "is a link to nothing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        if _real(path.parent) not in self._damage:  # which says it of all that is in there
            self._damage.setdefault(_real(path), SpanReport(str(path), 0, 0, f"unreadable: {reason}"))
        return True

    def _refused_since(self, known: int) -> str:
        """Return a text about the first refused path after ``known`` others."""
        return "".join(f"; {spot.path} is {spot.reason}" for spot in list(self._damage.values())[known : known + 1])

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
        """Segments of formats that are not installed."""
        if not unread_segments(files, self._formats.extensions):
            return []
        try:
            settings = read_settings(self._files, directory)
        except (StoreError, OSError):
            settings = None
        return sorted(self._formats.unread(files, settings))

    def _refuse_unread(self, path: Path) -> None:
        self._refuse(path, OSError(errno.ENOTSUP, f"no installed format reads *{path.suffix}"))

    def _add_matches(self, pattern: str) -> bool:
        for directory, error in unreadable_directories(pattern):
            if not _is_unfinished(directory):
                self._refuse(directory, error)
        found = False
        for path in matches(pattern):
            if _real(path.parent) not in self._damage and not _is_unfinished(path):
                found |= self._add_match(path)
        return found

    def _add_match(self, path: Path) -> bool:
        """Add a match of a pattern. Return True if it has the name of a segment, or is a directory with one."""
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
            not_read=self._not_read.found(),
        )

    def _without_settings(self, damaged: Path, copy: Settings | None) -> Settings:
        """Without a copy every installed record type that a format's specification assigns a byte to may be there."""
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
        """Less those that only other formats have. What nobody has stays, and is an error."""
        formats = {record: {d.format for d in self._record_types() if d.name == record} for record in bindings}
        return tuple(
            (record, byte) for record, byte in sorted(bindings.items()) if not formats[record] or format_name in formats[record]
        )


def _real(path: Path) -> Path:
    """The same for every way to a name, and another for a link than for what it leads to."""
    return path.parent.resolve() / path.name


def _is_unfinished(path: Path) -> bool:
    return any(_UNFINISHED.fullmatch(part) for part in path.parts)


def _age(name: str) -> tuple[int, str, str]:
    path = Path(name)
    number = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else _NO_NUMBER
    return number, path.suffix, name


def no_segments(directory: Path, formats: FormatSet) -> str:
    """The message for a directory without segments; names those beneath it that have some."""
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
    """The first of them, and how many more there are."""
    more = f" and {len(directories) - _NAMED} more" if len(directories) > _NAMED else ""
    return ", ".join(directories[:_NAMED]) + more


def stores_beneath(directory: Path, formats: FormatSet) -> list[Path]:
    """Return the directories beneath one that have segments of their own, by name; unfinished stores do not count."""
    return [
        Path(path)
        for path, _, names in sorted(os.walk(directory))
        if Path(path) != directory
        and not _is_unfinished(Path(path).relative_to(directory))
        and any(Path(name).suffix in formats.extensions for name in names)
    ]
