"""Inputs of a job: resolve paths to segments that any process can read, in order of preference, with their record types."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs

from msgstore.contract import PluginError, RecordTypeDescriptor, StoreError
from msgstore.directory import SETTINGS, SETTINGS_COPY, DamagedSettings, Settings, read_settings, unread_segments
from msgstore.engine.open.startup import READ_BY_ANOTHER
from msgstore.engine.state.clean_shutdown import CLEAN
from msgstore.files import Files, is_gone, stat_regular_file
from msgstore.jobs.detection import reads_messages
from msgstore.jobs.paths import is_glob, matched_by, matches, unreadable_directories
from msgstore.jobs.reports import SETTINGS_DAMAGED, Findings, NotRead, SpanReport, find_not_read
from msgstore.jobs.store_directories import UNFINISHED, check_no_writer_since, is_unfinished, name_some, stores_beneath
from msgstore.jobs.workers import disabled_plugins, worker_catalogue
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, OpenFormat
from msgstore.writer_lock import check_no_writer, read_lock

log = logging.getLogger("msgstore.bulk")

_UNREAD = "no installed format reads"
NO_FORMAT = f"unreadable: {_UNREAD}"
"""Begin of the reason for a segment whose format is not installed."""


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
class JobInputs:
    """Segments that a job reads, and findings of the search for them."""

    inputs: tuple[SegmentInput, ...]
    """By rank."""
    damage: tuple[SpanReport, ...]
    """Unreadable ``msgstore.json`` files (``settings_damaged``), and segments of formats that are not installed (``unreadable:
    ...``). With size 0: names of segments that are not regular files or cannot be examined, and directories of a tree or a glob
    that cannot be listed."""
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
    lock_texts: tuple[tuple[str, bytes], ...] = ()
    """(directory, text of its lock file) of each store, also without segments, if nothing may be written there during the job.
    From before the directory was listed."""

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return sum(item.size for item in self.inputs)

    def paths(self, sources: Iterable[str | Path]) -> list[Path]:
        """Return the paths that a destination must not be in: ``sources``, the matches of their globs, and the directories of
        the segments. The directory of a source that is a file is left out."""
        named = [*map(Path, sources)]
        paths = [*named, *matched_by(named)]
        of_files = {path.parent for path in paths if path.is_file()}
        return [*paths, *sorted({Path(item.store) for item in self.inputs} - of_files)]

    def bound_types(self) -> set[str]:
        """Return the names of the record types that the directories bind."""
        return {name for item in self.inputs for name, _ in item.records}

    def check_no_writer_since(self) -> None:
        """Raise StoreError if a writer has opened one of the stores since they were listed. Called at the end of a job."""
        check_no_writer_since(self.lock_texts)

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
    found: JobInputs

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.found.size


def find_inputs(
    catalogue: Catalogue, paths: Iterable[str | Path], *, records: Mapping[str, int] | None = None, offline: bool = False
) -> JobInputs:
    """Return the segments of ``paths``. Each is a segment, a directory of segments, a tree of such directories, or a glob.

    Ranks: stores in the order given, those of a tree or a glob by name; in a store the highest number first, and files without
    a number last. A segment that is reached twice counts once. A directory with segments stands for these only. Directories
    below it are omitted, with a warning: they may be older copies, and removed messages would return. Any other directory is a
    tree, and stands for all stores below it, nested or hidden; symbolic links to directories are not followed. A glob matches
    hidden names. ``records`` are bound in addition to the remembered bindings of each directory, and override them.

    An unreadable name or directory in a directory, a tree or a glob is damage, and the others are read. Raises StoreError for a
    path without segments, PluginError for segments with a record type that no plugin provides, and with ``offline`` StoreLocked
    for a store that is open for writing.
    """
    search = _Search(catalogue, dict(records or {}), FormatSet(catalogue))
    for path in paths:
        search.add(str(path))
    found = search.found()
    if not offline:
        return found
    stores = [store for store, _ in search.stores.values()]
    for store in sorted(stores):
        check_no_writer(Path(store))
    return attrs.evolve(found, lock_texts=tuple((store, search.lock_texts[store]) for store in stores))


def open_input(found: SegmentInput) -> OpenFormat:
    """Return the format of a segment. It is created once in each process for all segments with the same record types.

    Raises PluginError if this process lacks a plugin that the process which found the segment had.
    """
    try:
        return _open(found.format, found.records, found.distributions, disabled_plugins())
    except PluginError as error:
        raise type(error)(f"{found.path}: {error}") from error


@cache
def _open(
    name: str, records: tuple[tuple[str, int], ...], distributions: tuple[tuple[str, str], ...], _disabled: tuple[str, ...]
) -> OpenFormat:
    return FormatSet(attrs.evolve(worker_catalogue(), remembered=dict(distributions)), dict(records)).by_name(name)


@attrs.define
class _Search:
    """Search for segments. Collects their names by directory, in the order in which the directories are found."""

    catalogue: Catalogue
    records: Mapping[str, int]
    formats: FormatSet
    stores: dict[Path, tuple[str, dict[str, int]]] = attrs.field(factory=dict)
    """Real path to (path as given, name to size)."""
    damage: dict[Path, SpanReport] = attrs.field(factory=dict)
    """Real path, in which the last part may be a link, to its damage."""
    ignored: set[str] = attrs.field(factory=set)
    missing: dict[str, Path] = attrs.field(factory=dict)
    """Errors about formats that are not installed, with their first segments."""
    beneath_stores: set[Path] = attrs.field(factory=set)
    """Directories with segments below a directory with segments."""
    trees: list[Path] = attrs.field(factory=list)
    lock_texts: dict[str, bytes] = attrs.field(factory=dict)
    """Directory to the text of its lock file."""

    def add(self, given: str) -> None:
        """Add the segments of a path. Raises StoreError if there are none."""
        path, known = Path(given), len(self.damage)
        paths = [path]
        if path.exists():
            if not (path.is_dir() or path.is_file()):
                raise StoreError(f"{given}: is neither a regular file nor a directory; copy what it holds into a file")
        elif is_glob(given):
            for directory, error in unreadable_directories(given):
                if not is_unfinished(directory):
                    self._refuse(directory, error)
            paths = [match for match in matches(given) if not is_unfinished(match)]
        else:
            raise StoreError(f"{given}: there is no such file or directory")
        found = [self._add_path(match) for match in paths if _real(match.parent) not in self.damage]
        if not any(found):
            refused = [f"; {one.path} is {one.reason}" for one in self.damage.values()][known:]
            raise StoreError(self._nothing_in(path) + "".join(refused[:1]))

    def _nothing_in(self, path: Path) -> str:
        if path.is_dir():
            return no_segments(path, self.formats, self.catalogue)
        if path.is_file():
            formats = ", ".join(f"*{extension} ({name})" for extension, name in sorted(self.formats.extensions.items()))
            known = f"{path}: no installed format reads such files; known are {formats or 'none'}; a glob in quotes omits them"
            return known + reads_messages(self.catalogue, path)
        return f"{path}: nothing that matches is a segment ({_known(self.formats)}), or a directory that has some"

    def _add_path(self, path: Path) -> bool:
        """Add a file, a store, or the stores of a tree. Return True if there is a segment, or a store without any."""
        if not os.path.isdir(path):  # noqa: PTH112 - a Path's raises, in some versions
            self.lock_texts.setdefault(str(path.parent), read_lock(path.parent))
            try:
                return self._add_files(path.parent, {path.name: stat_regular_file(path)[0]})
            except OSError as error:
                return self._add_files(path.parent, {path.name: error})
        if self._add_store(path):
            self.beneath_stores.update(stores_beneath(path, self.formats))
            return True
        self.trees.append(path)
        has_stores = False
        for directory, names, _ in os.walk(path, onerror=lambda error: self._refuse(Path(error.filename or path), error)):
            names[:] = sorted(name for name in names if not UNFINISHED.fullmatch(name))
            has_stores |= Path(directory) != path and self._add_store(Path(directory))
        return has_stores

    def _add_store(self, directory: Path) -> bool:
        """Add the files of a directory if it is a store. Return True if it is."""
        self.lock_texts.setdefault(str(directory), read_lock(directory))
        try:
            listed, refused = Files().entries(directory)
        except OSError as error:
            self._refuse(directory, error)
            return False
        files = {name: size for name, (size, _) in listed.items()} | refused
        names = {name for name in files if name in listed or refused[name].errno != errno.EISDIR}
        if not (
            names & {SETTINGS, SETTINGS_COPY, CLEAN} or any(map(self._is_segment, names)) or self._unread(directory, names)
        ):
            return False
        self._add_files(directory, files, is_store=True)
        return True

    def _add_files(self, directory: Path, files: Mapping[str, int | OSError], *, is_store: bool = False) -> bool:
        """Add segments, damage and ignored files, by name with their sizes or errors. Return True if there is a segment, or
        damage that has its name."""
        unread, found = self._unread(directory, files), False
        sizes = {name: size for name, size in files.items() if isinstance(size, int) and self._is_segment(name)}
        if sizes or is_store:
            self.stores.setdefault(directory.resolve(), (str(directory), {}))[1].update(sizes)
        for name in sorted(files.keys() - sizes.keys(), key=age_of, reverse=True):
            size = files[name]
            if name in unread:
                self.missing.setdefault(str(unread[name]), directory / name)
                unreadable = OSError(errno.ENOTSUP, f"{_UNREAD} *{_split(name)[1]}")
                self._refuse(directory / name, unreadable, size if isinstance(size, int) else 0)
            elif isinstance(size, OSError) and self._is_segment(name):
                found |= self._refuse(directory / name, size)
            elif not _is_own(name, files) and (isinstance(size, int) or size.errno != errno.EISDIR):
                self.ignored.add(str(directory / name))
        return found or bool(sizes)

    def _refuse(self, path: Path, error: OSError, size: int = 0) -> bool:
        """Report an unreadable path as damage, once. Return False if it does not exist any more. ``size``: bytes, if known."""
        if is_gone(path, error):
            return False
        reason = "is a link to nothing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        if _real(path.parent) not in self.damage:  # the damage of a directory stands for everything in it
            self.damage.setdefault(_real(path), SpanReport(str(path), 0, size, f"unreadable: {reason}"))
        return True

    def _is_segment(self, name: str) -> bool:
        return _split(name)[1] in self.formats.extensions

    def _unread(self, directory: Path, names: Collection[str]) -> dict[str, PluginError]:
        """Return the names of segments of formats that are not installed, with the errors that say what to install."""
        if not unread_segments(names, self.formats.extensions):
            return {}
        try:
            settings = read_settings(Files(), directory)
        except (StoreError, OSError):
            settings = None
        distributions = settings.distributions if settings else {}
        return FormatSet(attrs.evolve(self.catalogue, remembered=distributions)).unread(names, settings)

    def found(self) -> JobInputs:
        for error, path in self.missing.items():
            log.warning("%s: %s", path, error)
        left = [str(path) for path in sorted(self.beneath_stores) if path.resolve() not in self.stores]
        if left:
            log.warning(
                "left out, beneath directories that have segments of their own: %s; name them as well to read them",
                name_some(left),
            )
        inputs: list[SegmentInput] = []
        known: dict[str, Settings] = {}
        for store, sizes in self.stores.values():
            try:
                settings = read_settings(Files(), Path(store))
                if settings:
                    known[store] = settings
                    catalogue = attrs.evolve(self.catalogue, remembered=settings.distributions)
                    for changed in catalogue.changed_providers(settings.backends):
                        log.warning(READ_BY_ANOTHER, store, changed)
            except (StoreError, OSError) as error:
                settings = self._without_settings(Path(store, SETTINGS), error)
            inputs += self._inputs(len(inputs), store, sizes, settings or Settings())
        for item in {(item.format, item.records): item for item in inputs}.values():
            open_input(item)
        return JobInputs(
            tuple(inputs),
            tuple(self.damage.values()),
            tuple(sorted(self.ignored)),
            codecs=tuple(dict.fromkeys(settings.body for settings in known.values())),
            record_types=tuple(dict.fromkeys(settings.record for settings in known.values())),
            unknown=tuple(store for store, _ in self.stores.values() if store not in known),
            not_read=find_not_read(*self.trees),
        )

    def _without_settings(self, damaged: Path, error: Exception) -> Settings:
        """Return the settings to use for a damaged file: its copy, or bindings of all record types with an assigned byte."""
        try:
            size, _ = stat_regular_file(damaged)
        except OSError:
            size = 0
        self.damage[_real(damaged)] = SpanReport(str(damaged), 0, size, SETTINGS_DAMAGED)
        if isinstance(error, DamagedSettings) and error.copy is not None:
            return error.copy
        types = self.catalogue.descriptors(RecordTypeDescriptor)
        return Settings(records={found.name: found.assigned_byte for found in types if found.assigned_byte is not None})

    def _inputs(self, rank: int, store: str, sizes: Mapping[str, int], settings: Settings) -> Iterator[SegmentInput]:
        """Yield the segments of a store. Each has the bindings of its format; a record type without a provider is an error."""
        given = self.records.values()
        bindings = {record: byte for record, byte in settings.records.items() if byte not in given} | dict(self.records)
        types = self.catalogue.descriptors(RecordTypeDescriptor)
        formats = {record: {found.format for found in types if found.name == record} for record in bindings}
        distributions = tuple(sorted(settings.distributions.items()))
        directory = str(Path(store, "x"))[:-1]
        for number, name in enumerate(sorted(sizes, key=age_of, reverse=True), rank):
            form = self.formats.extensions[_split(name)[1]]
            records = tuple(
                (record, byte)
                for record, byte in sorted(bindings.items())
                if not formats[record] or form in formats[record]  # not those that only other formats have
            )
            yield SegmentInput(number, store, f"{directory}{name}", form, sizes[name], records, distributions)


def _real(path: Path) -> Path:
    """Return the real directory and the name. A link and its target are different."""
    return path.parent.resolve() / path.name


def _is_own(name: str, files: Collection[str]) -> bool:
    """Return True for a file that a store of msgstore keeps beside its segments."""
    return name.startswith(("msgstore.", "msgstore-")) or (name == CLEAN and SETTINGS in files)


def age_of(name: str) -> tuple[int, str, str]:
    """Return the sort key of a file's name in its store: numbered files are in the order in which they were begun."""
    stem, suffix = _split(name)
    number = int(stem) if stem.isascii() and stem.isdigit() else -1
    return number, suffix, name


def _split(name: str) -> tuple[str, str]:
    """Return stem and suffix of a file's name."""
    return os.path.splitext(name)  # noqa: PTH122 - a Path takes ten times as long, and there may be 100,000 segments


def no_segments(directory: Path, formats: FormatSet, catalogue: Catalogue) -> str:
    """Return the error message for a directory without segments. It names directories below that have some."""
    beneath = [path.relative_to(directory).as_posix() for path in stores_beneath(directory, formats)]
    message = f"{directory}: there are no segments in this directory ({_known(formats)})"
    if beneath:
        message += f"; directories beneath it that have some: {name_some(beneath)}"
    found = find_not_read(directory)
    if found:
        message += f"; not read by msgstore: {name_some([f'{one.path} ({one.what}, {one.size:,} bytes)' for one in found])}"
    return message + reads_messages(catalogue, directory)


def _known(formats: FormatSet) -> str:
    return ", ".join(f"*{extension}" for extension in sorted(formats.extensions)) or "no format is installed"
