"""What a store directory holds: its segments, and the few things that it remembers about itself.

``msgstore.json`` remembers what later openings must not contradict: the type bytes that record types are bound to, and the
backends of the last opening, which tools take when they are given a bare directory. It is written atomically, with a
CRC-32 over its other members, and is as readable to a person as it is small.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import attrs

from msgstore.contract import Buffer, StoreError, StoreMismatch, suffixes
from msgstore.files import Files

log = logging.getLogger("msgstore.recovery")

SETTINGS = "msgstore.json"
SETTINGS_COPY = "msgstore.json.copy"
"""Copy of ``msgstore.json``, read if that is damaged."""
LOCK = "msgstore.lock"
_LAYOUT = 1
MAX_SETTINGS = 2**20
"""Bytes of a ``msgstore.json`` that is read."""
MAX_NUMBER = 10**18 - 10**9
"""A store with a segment of this number or above is not opened for writing: numbers have 18 digits, and it goes on counting."""
UNNAMED = suffixes.UNFINISHED
"""What the name of a segment ends in that is not to be read yet."""
DOOMED = suffixes.DOOMED
"""What the name of a segment ends in that is deleted, and whose bytes are not overwritten yet."""
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_SEGMENT = re.compile(r"(\d{1,18})(\.[A-Za-z0-9_]+)")


class DamagedSettings(StoreError):
    """A ``msgstore.json`` that is empty, torn or changed: it is not what was written."""

    def __init__(self, message: str, reason: str = "", copy: Settings | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.copy = copy
        """Settings in ``msgstore.json.copy``; None if that is missing or damaged."""


class _NotWhole(ValueError):
    """Why a text is none that was written as settings."""


@attrs.frozen
class SegmentFile:
    number: int
    extension: str
    path: Path
    size: int
    mtime_ns: int


def _check_name(_: object, field: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"its {field.name} is not a name")


def _check_records(_: object, __: object, value: object) -> None:
    if not isinstance(value, dict) or not all(type(byte) is int and 0 <= byte <= 255 for byte in value.values()):
        raise ValueError("its records are not names with type bytes from 0 to 255")


def _check_distributions(_: object, __: object, value: object) -> None:
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and _DISTRIBUTION.fullmatch(name) for name in value.values()
    ):
        raise ValueError("its distributions are not names of backends with names of distributions")


@attrs.frozen
class Settings:
    """What ``msgstore.json`` holds. Raises ValueError, TypeError if it is made of anything else."""

    index: str = attrs.field(default="ets", validator=_check_name)
    format: str = attrs.field(default="v2", validator=_check_name)
    record: str = attrs.field(default="message", validator=_check_name)
    body: str = attrs.field(default="raw", validator=_check_name)
    records: dict[str, int] = attrs.field(factory=dict, validator=_check_records)
    """Record type name to the type byte it is bound to, in this directory, for ever."""
    distributions: dict[str, str] = attrs.field(factory=dict, validator=_check_distributions)
    """``kind name`` of what somebody else's distribution provided, to that distribution: what to install if it is missing."""

    @property
    def formats(self) -> list[str]:
        """Of which there may be segments: what the last opening wrote, and what of somebody else's it found."""
        kinds = (key.partition(" ") for key in self.distributions)
        return [self.format, *(name for kind, _, name in kinds if kind == "format" and name != self.format)]


def segment_number(name: str, extensions: Collection[str]) -> int | None:
    """The number in a segment's name; None if it is no segment's."""
    match = _SEGMENT.fullmatch(name)
    if match and match[2] in extensions and str(int(match[1])) == match[1]:
        return int(match[1])
    return None


def unread_segments(names: Iterable[str], extensions: Collection[str]) -> list[str]:
    """Of the names in a store's directory those that are a segment's but for the extension, which no installed format has."""
    matches = ((name, _SEGMENT.fullmatch(name)) for name in names)
    return sorted(name for name, match in matches if match and match[2] not in extensions and str(int(match[1])) == match[1])


def list_segments(files: Files, directory: Path, extensions: Collection[str]) -> list[SegmentFile]:
    """The segments in ``directory``, in number order; several of one number in the order of their extensions."""
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
    """The segments of a store in ``directory``, in number order. Raises StoreMismatch if two files claim one number.

    A file with one of the extensions ``leftovers`` counts as a segment of the next number that is free.
    """
    everything = list_segments(files, directory, extensions)
    found = [segment for segment in everything if segment.extension not in leftovers]
    for one, other in itertools.pairwise(found):
        if one.number == other.number:
            raise StoreMismatch(
                f"{directory}: {one.path.name} and {other.path.name} have the same number; a store has one segment a number. "
                f"Use 'msgstore salvage' to make a fresh store of both."
            )
    left = [segment for segment in everything if segment.extension in leftovers]
    free = itertools.count(max((segment.number for segment in everything), default=-1) + 1)
    return found + [attrs.evolve(segment, number=number) for segment, number in zip(left, free, strict=False)]


def adopt_leftovers(files: Files, directory: Path, formats: Mapping[str, str], leftovers: Collection[str]) -> None:
    """Give each leftover the name that it counts as: its format's extension, the next free number. On disk when it returns.

    ``formats``: extension to format. Killed in between, some are segments and the others are adopted by the next start.
    """
    adopted = False
    own = {name: extension for extension, name in formats.items() if extension not in leftovers}
    for segment in find_segments(files, directory, formats, leftovers):
        if segment.extension in leftovers:
            name = f"{segment.number}{own[formats[segment.extension]]}"
            log.warning("%s: is left over from a collection that did not finish, and becomes %s", segment.path, name)
            files.replace(segment.path, directory / name)
            adopted = True
    if adopted:
        files.sync_directory(directory)


def segments_ending(names: Iterable[str], suffix: str, extensions: Collection[str]) -> list[str]:
    """Of ``names`` those of a segment with ``suffix`` behind them, which no start reads."""
    found = []
    for name in names:
        match = _SEGMENT.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if match and match[2] in extensions:
            found.append(name)
    return found


def check_writable(files: Files, directory: Path, segments: Iterable[SegmentFile], extensions: Collection[str]) -> None:
    """Raises StoreMismatch if what has a segment's name is none that may be written to, moved into, or cut."""
    for name, kind in files.strangers(directory).items():
        match = _SEGMENT.fullmatch(name)
        if match and match[2] in extensions:
            raise StoreMismatch(
                f"{directory}: {name} is {kind}, not a file of this directory, so msgstore does not write here. Put a file in "
                f"its place, or remove it; 'msgstore salvage' copies what can be read into a fresh store."
            )
    highest = max(segments, key=lambda segment: segment.number, default=None)
    if highest is not None and highest.number >= MAX_NUMBER:
        raise StoreMismatch(
            f"{directory}: {highest.path.name} leaves no numbers for the segments behind it. Use 'msgstore salvage' to make a "
            f"fresh store."
        )


def read_settings(files: Files, directory: Path) -> Settings | None:
    """What the directory remembers, or None if it was never opened by msgstore. Raises DamagedSettings if it is not
    what was written, StoreError if it cannot be used."""
    path = directory / SETTINGS
    try:
        with files.view(path) as data:
            return _settings(data)
    except FileNotFoundError:
        return None
    except _NotWhole as error:
        raise DamagedSettings(
            f"{path}: cannot be used: {error}. It holds the bindings of record types to type bytes; "
            f"restore it from a backup, or move it away if the store has none.",
            str(error),
            _read_copy(files, directory),
        ) from error
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path}: cannot be used: {error}. It holds the bindings of record types to type bytes; restore it from a backup. "
            f"If the store has none, move it away, and open the directory once with --adopt (adopt=True)."
        ) from error


def _read_copy(files: Files, directory: Path) -> Settings | None:
    try:
        with files.view(directory / SETTINGS_COPY) as data:
            return _settings(data)
    except (OSError, ValueError, TypeError):
        return None


def _settings(data: Buffer) -> Settings:
    """Raises _NotWhole, ValueError, TypeError."""
    if len(data) > MAX_SETTINGS:
        raise _NotWhole(f"it is larger than {MAX_SETTINGS} bytes")
    try:
        members = json.loads(data[:])
        if not isinstance(members, dict):
            raise _NotWhole("it is not an object")
        if members.pop("crc32", None) != _checksum(members):
            raise _NotWhole("its checksum is wrong")
    except RecursionError as error:
        raise _NotWhole("it is nested too deeply") from error
    except ValueError as error:
        raise error if isinstance(error, _NotWhole) else _NotWhole(str(error)) from error
    if members.pop("layout", None) != _LAYOUT:
        raise ValueError("it was written by a newer msgstore")
    return Settings(**members)


def write_settings(files: Files, directory: Path, settings: Settings) -> None:
    """Write ``msgstore.json`` and its copy, synced whatever the durability: without it nobody knows what the directory is."""
    members = {"layout": _LAYOUT, **attrs.asdict(settings)}
    if not settings.distributions:
        del members["distributions"]
    text = json.dumps({**members, "crc32": _checksum(members)}, indent=2)
    for name in (SETTINGS, SETTINGS_COPY):
        files.write_file(directory / name, [text.encode() + b"\n"], sync=True)


def has_copy(files: Files, directory: Path, settings: Settings) -> bool:
    """Return True if the copy has these settings. After a crash between the two writes, or an older version, it has not."""
    return _read_copy(files, directory) == settings


def _checksum(members: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())
