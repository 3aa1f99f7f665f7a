"""From paths to segments that any process can read: which there are, in which order, and with which record types."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs

from msgstore.bulk.reports import SETTINGS_DAMAGED, SpanReport
from msgstore.bulk.workers import installed
from msgstore.contract import PluginError, RecordTypeDescriptor, StoreError
from msgstore.directory import SETTINGS, Settings, read_settings
from msgstore.engine.shutdown import CLEAN
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, OpenFormat

_UNFINISHED = re.compile(r"\..+\.msgstore-[0-9a-f]+")
"""Directories in which a job of ours builds a store, or was killed while it did: copies of what stands elsewhere."""
_NO_NUMBER = -1


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
    """``msgstore.json`` files that cannot be read (``settings_damaged``), directories inside a tree that cannot be listed."""
    ignored: tuple[str, ...]
    """Files in the directories of segments that are no segments of an installed format."""
    codecs: tuple[str, ...]
    """Body codecs that the directories remember, each once."""
    record_types: tuple[str, ...] = ()
    """What they remember that new messages are written as, each once."""
    unknown: tuple[str, ...] = ()
    """Directories that remember nothing, such as RabbitMQ's."""


def find_inputs(catalogue: Catalogue, paths: Iterable[str | Path], *, records: Mapping[str, int] | None = None) -> Found:
    """The segments of ``paths``, each of which is a segment, a directory of segments, a tree of such directories, or a glob.

    Ranks: stores in the order given, those of a tree or a glob by name; in a store the highest number first, files without a
    number last. What is reached twice counts once. A directory with segments of its own stands for these only. A tree is any
    other: its hidden directories count, symbolic links to directories do not. A glob sees hidden names too. ``records`` are
    bound beside what each directory remembers, and instead of it where the two contradict.

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
    try:
        return _made(found.format, found.records, found.distributions)
    except PluginError as error:
        raise type(error)(f"{found.path}: {error}") from error


@cache
def _made(name: str, records: tuple[tuple[str, int], ...], distributions: tuple[tuple[str, str], ...]) -> OpenFormat:
    catalogue = attrs.evolve(installed(), remembered=dict(distributions))
    return FormatSet(catalogue, dict(records)).by_name(name)


class _Search:
    """Names of segments by their directory, in the order in which directories turned up."""

    def __init__(self, catalogue: Catalogue, records: Mapping[str, int]) -> None:
        self._catalogue = catalogue
        self._records = records
        self._files = Files()
        self._formats = FormatSet(catalogue)
        self._stores: dict[Path, tuple[str, dict[str, int]]] = {}
        """Real path to (path as given, name to size)."""
        self._damage: list[SpanReport] = []
        self._ignored: dict[str, None] = {}
        self._makeable: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
        """Formats with record types that could be made."""

    def add(self, given: str) -> None:
        """Raises StoreError if there is nothing."""
        path = Path(given)
        if path.is_file():
            self._add_file(path)
        elif path.is_dir():
            if not self._add_directory(path):
                raise StoreError(no_segments(path, self._formats))
        elif path.exists():
            raise StoreError(f"{given}: is neither a regular file nor a directory; copy what it holds into a file")
        elif glob.has_magic(given):
            self._add_matches(given)
        else:
            raise StoreError(f"{given}: there is no such file or directory")

    def _add_file(self, path: Path) -> None:
        if path.suffix not in self._formats.extensions:
            known = ", ".join(f"*{extension} ({name})" for extension, name in sorted(self._formats.extensions.items()))
            raise StoreError(f"{path}: no installed format reads such files; known are {known or 'none'}")
        self._names(path.parent).setdefault(path.name, path.stat().st_size)

    def _add_directory(self, top: Path) -> bool:
        """Whether it is a store, or a tree in which there is one."""
        try:
            if self._add_store(top):
                return True
        except OSError as error:
            raise StoreError(f"{top}: cannot be listed: {error.strerror}") from error
        found = False
        for directory in self._beneath(top):
            try:
                found |= self._add_store(directory)
            except OSError as error:
                self._cannot_list(error)
        return found

    def _beneath(self, top: Path) -> Iterator[Path]:
        """The directories of a tree by name, links and unfinished stores left out."""
        for directory, names, _ in os.walk(top, onerror=self._cannot_list):
            names[:] = sorted(name for name in names if not _UNFINISHED.fullmatch(name))
            if Path(directory) != top:
                yield Path(directory)

    def _cannot_list(self, error: OSError) -> None:
        self._damage.append(SpanReport(str(error.filename), 0, 0, f"unreadable: {error.strerror}"))

    def _add_store(self, directory: Path) -> bool:
        """Whether it has segments of its own, or is a store that has none yet. Raises OSError."""
        listed = self._files.list(directory)
        segments = {name: size for name, (size, _) in listed.items() if Path(name).suffix in self._formats.extensions}
        if not segments and SETTINGS not in listed and CLEAN not in listed:
            return False
        self._names(directory).update(segments)
        self._ignored |= dict.fromkeys(str(directory / name) for name in sorted(listed.keys() - segments.keys()))
        return True

    def _add_matches(self, pattern: str) -> None:
        found = False
        for match in sorted(glob.glob(pattern, recursive=True, include_hidden=True)):  # noqa: PTH207 - a Path takes relative patterns only
            path = Path(match)
            if any(_UNFINISHED.fullmatch(part) for part in path.parts):
                continue
            if path.is_dir():
                found |= self._add_directory(path)
            elif path.is_file() and path.suffix in self._formats.extensions:
                self._add_file(path)
                found = True
            elif path.is_file():
                self._ignored[match] = None
        if not found:
            known = ", ".join(f"*{extension}" for extension in sorted(self._formats.extensions)) or "no format is installed"
            raise StoreError(f"{pattern}: nothing that matches is a segment ({known}), or a directory that has some")

    def _names(self, directory: Path) -> dict[str, int]:
        return self._stores.setdefault(directory.resolve(), (str(directory), {}))[1]

    def found(self) -> Found:
        inputs: list[SegmentInput] = []
        known: dict[str, Settings] = {}
        for store, names in self._stores.values():
            try:
                settings = read_settings(self._files, Path(store))
            except (StoreError, OSError):
                settings = self._without_settings(Path(store, SETTINGS))
            else:
                known |= {store: settings} if settings else {}
            for name in sorted(names, key=_age, reverse=True):
                inputs.append(self._input(len(inputs), store, name, names[name], settings or Settings()))
        return Found(
            tuple(inputs),
            tuple(self._damage),
            tuple(self._ignored),
            codecs=tuple(dict.fromkeys(settings.body for settings in known.values())),
            record_types=tuple(dict.fromkeys(settings.record for settings in known.values())),
            unknown=tuple(store for store, _ in self._stores.values() if store not in known),
        )

    def _without_settings(self, damaged: Path) -> Settings:
        """Then every installed record type that a format's specification assigns a byte to may be there."""
        self._damage.append(SpanReport(str(damaged), 0, damaged.stat().st_size, SETTINGS_DAMAGED))
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
            self._check(found)
            self._makeable.add((found.format, found.records))
        return found

    def _known_to(self, format_name: str, bindings: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """Less those that only other formats have. What nobody has stays, and is an error."""
        formats = {record: {d.format for d in self._record_types() if d.name == record} for record in bindings}
        return tuple(
            (record, byte) for record, byte in sorted(bindings.items()) if not formats[record] or format_name in formats[record]
        )

    def _check(self, found: SegmentInput) -> None:
        try:
            catalogue = attrs.evolve(self._catalogue, remembered=dict(found.distributions))
            FormatSet(catalogue, dict(found.records)).by_name(found.format)
        except PluginError as error:
            raise type(error)(f"{found.path}: {error}") from error


def _age(name: str) -> tuple[int, str, str]:
    path = Path(name)
    number = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else _NO_NUMBER
    return number, path.suffix, name


def no_segments(directory: Path, formats: FormatSet) -> str:
    """The message for a directory without segments; names those beneath it that have some."""
    beneath = [
        Path(path).relative_to(directory).as_posix()
        for path, _, names in sorted(os.walk(directory))
        if Path(path) != directory and any(Path(name).suffix in formats.extensions for name in names)
    ]
    known = ", ".join(f"*{extension}" for extension in sorted(formats.extensions)) or "no format is installed"
    message = f"{directory}: there are no segments in this directory ({known})"
    if beneath:
        more = f" and {len(beneath) - 10} more" if len(beneath) > 10 else ""
        message += f"; directories beneath it that have some: {', '.join(beneath[:10])}{more}"
    return message
