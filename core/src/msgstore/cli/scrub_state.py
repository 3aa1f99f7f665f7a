"""Progress of a check: ``msgstore-scrub.json`` in the store's directory, so that a stopped check can be resumed.

The file saves time and holds no data. If it is damaged, the check reports that and starts at the first segment.
"""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from msgstore.cli.output import note
from msgstore.config import structure
from msgstore.contract import Buffer, ConfigError
from msgstore.directory import SETTINGS
from msgstore.files import Files

STATE = "msgstore-scrub.json"
SAVE_INTERVAL_SECONDS = 1.0
"""Time between two writes of the state. A killed check repeats at most this much."""
_LAYOUT = 1
_COUNT = attrs.validators.ge(-1)
_ALWAYS = {"behind", "segments", "records", "bytes", "spots"}
"""Keys of every state; older ones have no ``findings``."""
_MAX_STATE_BYTES = 16 * 2**20
"""Size limit of the file: a hundred thousand damaged spans."""


@attrs.frozen
class DamagedSpan:
    """A damaged span, or a record that does not match the index."""

    file: str
    offset: int = attrs.field(validator=_COUNT)
    size: int = attrs.field(validator=_COUNT)
    reason: str
    msg_id: str | None = None
    """Hexadecimal id, or None if it is not a live record."""

    def as_json(self, directory: Path) -> dict[str, Any]:
        return {
            "kind": "damage",
            "path": str(directory / self.file),
            "offset": self.offset,
            "size": self.size,
            "reason": self.reason,
            "id": self.msg_id,
        }


@attrs.frozen
class Finding:
    """A contradiction between index, counts and segments. Without an id it concerns the whole segment."""

    file: str
    what: str
    detail: str
    msg_id: str | None = None
    offset: int | None = attrs.field(default=None, validator=attrs.validators.optional(_COUNT))
    size: int | None = attrs.field(default=None, validator=attrs.validators.optional(_COUNT))

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "id": self.msg_id, "offset": self.offset, "size": self.size, "detail": self.detail}


@attrs.define
class ScrubState:
    """Results of a check up to and including the segment ``behind``. The names of the fields are keys in the file."""

    behind: int = attrs.field(default=-1, validator=_COUNT)
    segments: int = attrs.field(default=0, validator=_COUNT)
    records: int = attrs.field(default=0, validator=_COUNT)
    bytes: int = attrs.field(default=0, validator=_COUNT)
    spots: list[DamagedSpan] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)

    def add(self, number: int, records: int, size: int, spots: Iterable[DamagedSpan], findings: Iterable[Finding]) -> None:
        """Add the results of one segment. After an interrupt here, spans are reported twice rather than never."""
        self.segments += 1
        self.records += records
        self.bytes += size
        self.spots += spots
        self.findings += findings
        self.behind = number

    @property
    def damaged_files(self) -> set[str]:
        """Names of the segments in which something is wrong."""
        return {span.file for span in self.spots} | {finding.file for finding in self.findings}

    @property
    def unreachable(self) -> int:
        """Number of live messages that cannot be read."""
        return sum(span.msg_id is not None for span in self.spots)


def read_state(files: Files, directory: Path) -> ScrubState | None:
    """Return the saved state, or None if there is none. Raises OSError, and ValueError for an invalid file."""
    try:
        with files.view(directory / STATE) as data:
            return parse_state(data)
    except FileNotFoundError:
        return None


def parse_state(data: Buffer) -> ScrubState:
    """Parse a saved state. Raises ValueError for an invalid one. The checksum alone proves nothing: it can be forged."""
    if len(data) > _MAX_STATE_BYTES:
        raise ValueError(f"it is larger than {_MAX_STATE_BYTES} bytes")
    try:
        members = json.loads(data[:])
        if members.pop("crc32") != _checksum(members):
            raise ValueError("its checksum is wrong")
        if members.pop("layout") != _LAYOUT:
            raise ValueError("it was written by a newer msgstore")
        if missing := _ALWAYS - members.keys():
            raise ValueError(f"it has no {min(missing)!r}")
        state = structure(ScrubState, members, "")
    except (ConfigError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it is not what a check writes") from error
    found = [*map(attrs.astuple, state.spots), *map(attrs.astuple, state.findings)]
    texts = (text for values in found for text in values if isinstance(text, str))
    if not all(map(str.isprintable, texts)):
        raise ValueError("it contains control characters")
    return state


def write_state(files: Files, directory: Path, state: ScrubState) -> None:
    """Write the state atomically, without a sync: after a power loss, an older state is valid, too. Raises OSError."""
    members: dict[str, Any] = {"layout": _LAYOUT, **attrs.asdict(state)}
    text = json.dumps({**members, "crc32": _checksum(members)})
    files.write_file(directory / STATE, [text.encode() + b"\n"], sync=False)


def _checksum(members: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())


class StateFile:
    """State of a check on disk. If it cannot be written, the check prints that once and continues."""

    def __init__(self, files: Files, directory: Path, *, writes: bool) -> None:
        self._files = files
        self._directory = directory
        self._written = time.monotonic()
        self._writes = writes and (directory / SETTINGS).exists()  # nothing is written to a broker's directory

    def read(self) -> ScrubState:
        """Return the saved state, or a new one if it is missing or damaged."""
        try:
            state = read_state(self._files, self._directory) or ScrubState()
        except ValueError as error:
            note(f"{self._directory / STATE}: cannot be used: {error}. Starting at the first segment.")
            return ScrubState()
        if state.behind >= 0:
            note(f"{self._directory}: resumed after segment {state.behind}. Without --resume (scrub: with --restart), "
                 "the check starts at the first segment.")  # fmt: skip
        return state

    def write(self, state: ScrubState, *, now: bool = False) -> None:
        """Write the state, at most once per SAVE_INTERVAL_SECONDS unless ``now`` is set."""
        if not self._writes or (not now and time.monotonic() - self._written < SAVE_INTERVAL_SECONDS):
            return
        try:
            write_state(self._files, self._directory, state)
        except OSError as error:
            self._writes = False
            note(f"{self._directory / STATE}: cannot be written: {error.strerror}. If stopped, this check starts again.")
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the state after a complete check. One that cannot be removed does no harm: the next check replaces it."""
        if self._writes:
            with contextlib.suppress(OSError):
                self._files.unlink(self._directory / STATE)
