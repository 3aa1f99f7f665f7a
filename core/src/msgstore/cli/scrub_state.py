"""Progress of a check: ``msgstore-scrub.json`` in the store's directory, so that a stopped check can be resumed.

The file saves time and holds no data. If it is damaged, the check reports that and starts at the first segment.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Buffer
from msgstore.files import Files

STATE = "msgstore-scrub.json"
_LAYOUT = 1
_MAX_STATE_BYTES = 16 * 2**20
"""Size limit of the file: a hundred thousand damaged spans."""


def _check_count(_: object, field: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or value < -1:
        raise ValueError(f"its {field.name} is not a number")


def _check_text(_: object, field: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"its {field.name} is not text")  # noqa: TRY004 - ValueError for every invalid state


@attrs.frozen
class DamagedSpan:
    """A damaged span, or a record that does not match the index."""

    file: str = attrs.field(validator=_check_text)
    offset: int = attrs.field(validator=_check_count)
    size: int = attrs.field(validator=_check_count)
    reason: str = attrs.field(validator=_check_text)
    msg_id: str | None = attrs.field(default=None, validator=attrs.validators.optional(_check_text))
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

    file: str = attrs.field(validator=_check_text)
    what: str = attrs.field(validator=_check_text)
    detail: str = attrs.field(validator=_check_text)
    msg_id: str | None = attrs.field(default=None, validator=attrs.validators.optional(_check_text))
    offset: int | None = attrs.field(default=None, validator=attrs.validators.optional(_check_count))
    size: int | None = attrs.field(default=None, validator=attrs.validators.optional(_check_count))

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "id": self.msg_id, "offset": self.offset, "size": self.size, "detail": self.detail}


@attrs.define
class ScrubState:
    """Results of a check up to and including the segment ``behind``. The names of the fields are keys in the file."""

    behind: int = attrs.field(default=-1, validator=_check_count)
    segments: int = attrs.field(default=0, validator=_check_count)
    records: int = attrs.field(default=0, validator=_check_count)
    bytes: int = attrs.field(default=0, validator=_check_count)
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
        members["spots"] = [DamagedSpan(**span) for span in members["spots"]]
        members["findings"] = [Finding(**finding) for finding in members.get("findings", [])]
        state = ScrubState(**members)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
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


def remove_state(files: Files, directory: Path) -> None:
    """Remove the saved state after a complete check. One that cannot be removed does no harm: the next check replaces it."""
    with contextlib.suppress(OSError):
        files.unlink(directory / STATE)


def _checksum(members: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())
