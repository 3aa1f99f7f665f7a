"""Content of a store directory: its segments and its settings.

``msgstore.json`` holds the facts that later openings must not contradict: the type bytes of record types, and the backends of
the last opening. Tools use these backends for a bare directory. The file is written atomically, has a CRC-32 over its other
members, and is readable to people.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import and_, deep_mapping, instance_of, matches_re

from msgstore.contract import Buffer, StoreError, StoreMismatch
from msgstore.files import UNFINISHED, Files

log = logging.getLogger("msgstore.store")

SETTINGS = "msgstore.json"
SETTINGS_COPY = "msgstore.json.copy"
"""Copy of ``msgstore.json``, read if that is damaged or missing."""
LOCK = "msgstore.lock"
_LAYOUT = 1
MAX_SETTINGS = 2**20
"""Size limit of ``msgstore.json``, in bytes."""
MAX_NUMBER = 10**18 - 10**9
"""A store with a segment of this number or above is not opened for writing: numbers have 18 digits, and later segments need
more numbers."""
TEMP_SUFFIX = UNFINISHED
"""Suffix of a segment that is still being written. No opening reads it."""
ERASE_SUFFIX = ".erase"
"""Suffix of a deleted segment that still has to be overwritten with zeros."""
_TEXT = instance_of(str)
_NAME = and_(_TEXT, matches_re(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?"))
"""Validates the name of a distribution."""
_SEGMENT = re.compile(r"(\d{1,18})(\.[A-Za-z0-9_]+)")


class DamagedSettings(StoreError):
    """A ``msgstore.json`` that is empty, torn or changed, or missing beside its copy."""

    def __init__(self, message: str, reason: str, copy: Settings | None) -> None:
        super().__init__(message)
        self.reason = reason
        """The damage in words, such as ``its checksum is wrong``."""
        self.copy = copy
        """Settings in ``msgstore.json.copy``; None if that is missing or damaged."""


@attrs.frozen
class SegmentFile:
    """Name, size and modification time of one segment file."""

    number: int
    extension: str
    path: Path
    size: int
    mtime_ns: int


def _check_byte(_: object, attribute: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or not 0 <= value <= 255:
        raise ValueError(f"{attribute.name!r} must be type bytes from 0 to 255: {value!r}")


@attrs.frozen
class Settings:
    """Content of ``msgstore.json``. Raises ValueError or TypeError for invalid members."""

    index: str = attrs.field(default="ets", validator=_TEXT)
    format: str = attrs.field(default="v2", validator=_TEXT)
    record: str = attrs.field(default="message", validator=_TEXT)
    body: str = attrs.field(default="raw", validator=_TEXT)
    records: dict[str, int] = attrs.field(factory=dict, validator=deep_mapping(_TEXT, _check_byte, instance_of(dict)))
    """Record type name to its type byte. A binding is permanent for the directory."""
    distributions: dict[str, str] = attrs.field(factory=dict, validator=deep_mapping(_TEXT, _NAME, instance_of(dict)))
    """``kind name`` of each third-party backend to its distribution: what to install if it is missing."""

    @property
    def backends(self) -> list[tuple[str, str]]:
        """(kind, name) of each backend that the directory was last opened with, and of each third-party one in it."""
        used = [("index", self.index), ("format", self.format), ("body", self.body)]
        others = ((kind, name) for kind, _, name in (key.partition(" ") for key in self.distributions))
        return list(dict.fromkeys([*used, *(("record", name) for name in self.records), *others]))

    @property
    def formats(self) -> list[str]:
        """Names of formats that the directory may have segments of: that of the last opening, and third-party formats found
        then."""
        return [name for kind, name in self.backends if kind == "format"]


def _split(name: str) -> tuple[int, str] | None:
    """Return number and extension of a name that looks like a segment's, or None."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), match[2]) if match and str(int(match[1])) == match[1] else None


def segment_number(name: str, extensions: Collection[str]) -> int | None:
    """Return the number in the name of a segment, or None for any other file."""
    found = _split(name)
    return found[0] if found and found[1] in extensions else None


def unread_segments(names: Iterable[str], extensions: Collection[str]) -> list[str]:
    """Return the names that look like segments but have an extension that no installed format reads."""
    return sorted(name for name in names if (found := _split(name)) and found[1] not in extensions)


def list_segments(files: Files, directory: Path, extensions: Collection[str]) -> list[SegmentFile]:
    """Return the segments in ``directory`` in number order; several of one number in the order of their extensions."""
    found = []
    for name, (size, mtime_ns) in files.list(directory).items():
        number = segment_number(name, extensions)
        if number is not None:
            path = directory / name
            found.append(SegmentFile(number, path.suffix, path, size, mtime_ns))
    return sorted(found, key=lambda segment: (segment.number, segment.extension))


def find_segments(
    files: Files, directory: Path, extensions: Collection[str], leftovers: Collection[str] = ()
) -> list[SegmentFile]:
    """Return the segments of a store in ``directory`` in number order. Raises StoreMismatch if two files claim one number.

    A file with one of the extensions ``leftovers`` counts as a segment with the next free number.
    """
    everything = list_segments(files, directory, extensions)
    found = [segment for segment in everything if segment.extension not in leftovers]
    for one, other in itertools.pairwise(found):
        if one.number == other.number:
            raise StoreMismatch(
                f"{directory}: {one.path.name} and {other.path.name} have the same number; a store has one segment per number. "
                f"Use 'msgstore salvage' to make a new store of both."
            )
    left = [segment for segment in everything if segment.extension in leftovers]
    free = itertools.count(max((segment.number for segment in everything), default=-1) + 1)
    return found + [attrs.evolve(segment, number=number) for segment, number in zip(left, free, strict=False)]


def segments_ending(names: Iterable[str], suffix: str, extensions: Collection[str]) -> list[str]:
    """Return the names that are a segment name plus ``suffix``. No start reads such files."""
    ending = (name for name in names if name.endswith(suffix))
    return [name for name in ending if segment_number(name.removesuffix(suffix), extensions) is not None]


def check_writable(
    files: Files, directory: Path, segments: Iterable[SegmentFile], formats: Mapping[str, str], leftovers: Collection[str]
) -> None:
    """Raise StoreMismatch for a segment name that is not a regular file, for a leftover, and if the segment numbers are used
    up. ``formats``: extension to format."""
    for name, kind in files.non_regular_files(directory).items():
        if segment_number(name, formats) is not None:
            raise StoreMismatch(
                f"{directory}: {name} is {kind}, not a regular file, so msgstore does not write here. Replace it by a "
                f"file, or remove it. 'msgstore salvage' copies all intact records into a new store."
            )
    own = {name: extension for extension, name in formats.items() if extension not in leftovers}
    for segment in segments:
        if segment.extension in leftovers:
            raise StoreMismatch(
                f"{segment.path}: is left from a collection that a broker did not finish, and has messages. Rename it to "
                f"{segment.number}{own[formats[segment.extension]]}, which makes it a segment, and open the store again."
            )
        if segment.number >= MAX_NUMBER:
            raise StoreMismatch(
                f"{directory}: {segment.path.name} has the highest possible number. Use 'msgstore salvage' to make a new store."
            )


def has_settings(directory: Path) -> bool:
    """Return True if msgstore has opened the directory for writing. A directory that only a broker has used has none."""
    return any((directory / name).exists() for name in (SETTINGS, SETTINGS_COPY))


def known_settings(files: Files, directory: Path, *, warns: bool = True) -> Settings | None:
    """Return the settings of the directory, those of their copy if ``msgstore.json`` is damaged or missing; None if msgstore
    never opened it. Raises DamagedSettings if both are damaged, StoreError if they cannot be used."""
    try:
        return read_settings(files, directory)
    except DamagedSettings as error:
        if error.copy is None:
            raise
        if warns:
            log.warning("%s: cannot be used (%s). Its copy is used.", directory / SETTINGS, error.reason)
        return error.copy


def read_settings(files: Files, directory: Path, name: str = SETTINGS) -> Settings | None:
    """Return the settings of the directory, or None if msgstore never opened it. Raises DamagedSettings if the file is not as
    msgstore wrote it, StoreError if it cannot be used."""
    what = f"{directory / name}: cannot be used: {{}}. It holds the bindings of record types to type bytes. Restore it from a "
    try:
        with files.view(directory / name) as data:
            members = parse_settings(data)
    except (FileNotFoundError, ValueError) as error:
        is_missing, copy = isinstance(error, FileNotFoundError), None
        with suppress(DamagedSettings):
            copy = read_settings(files, directory, SETTINGS_COPY) if name == SETTINGS else None
        if is_missing and copy is None:
            return None
        reason = "it is missing" if is_missing else str(error)
        raise DamagedSettings(
            f"{what.format(reason)}backup. If there is none, copy the directory, move the file away, and open it once with "
            f"--adopt (adopt=True), and with the index, the format, its record types and the body codec that the store has.",
            reason,
            copy,
        ) from error
    try:
        return _settings(members)
    except (ValueError, TypeError) as error:
        action = "backup. If the store has none, move it away, and open the directory once with --adopt (adopt=True)."
        raise StoreError(f"{what.format(error)}{action}") from error


def parse_settings(data: Buffer) -> dict[str, Any]:
    """Return the members in the text of a settings file. Raises ValueError if msgstore cannot have written it."""
    if len(data) > MAX_SETTINGS:
        raise ValueError(f"it is larger than {MAX_SETTINGS} bytes")
    try:
        members = json.loads(data[:])
        if not isinstance(members, dict):
            raise ValueError("it is not an object")  # noqa: TRY004 - ValueError for every damage
        if members.pop("crc32", None) != _checksum(members):
            raise ValueError("its checksum is wrong")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return members


def _settings(members: dict[str, Any]) -> Settings:
    if members.pop("layout", None) != _LAYOUT:
        raise ValueError("it was written by a newer msgstore")
    return Settings(**members)


def write_settings(files: Files, directory: Path, settings: Settings) -> None:
    """Write ``msgstore.json`` and its copy. Both are always synced: without them the directory cannot be identified."""
    members = {"layout": _LAYOUT, **attrs.asdict(settings)}
    if not settings.distributions:
        del members["distributions"]
    text = json.dumps({**members, "crc32": _checksum(members)}, indent=2)
    for name in (SETTINGS, SETTINGS_COPY):
        files.write_file(directory / name, [text.encode() + b"\n"], sync=True)


def are_saved(files: Files, directory: Path, settings: Settings) -> bool:
    """Return True if both files have these settings. After damage, or a crash between the two writes, they have not."""
    with suppress(OSError, StoreError):
        return all(read_settings(files, directory, name) == settings for name in (SETTINGS, SETTINGS_COPY))
    return False


def _checksum(members: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())
