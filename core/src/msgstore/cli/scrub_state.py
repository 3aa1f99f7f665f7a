"""How far a scrub has come: ``msgstore-scrub.json`` in the store's directory, so that one that was stopped goes on.

It is worth time, never data: one that is damaged is said to be, and the scrub begins at the first segment.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Buffer
from msgstore.files import Files

STATE = "msgstore-scrub.json"
_LAYOUT = 1
_LARGEST = 16 * 2**20
"""Bytes of a state that is read: a hundred thousand damaged spans."""


def _check_count(_: object, field: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or value < -1:
        raise ValueError(f"its {field.name} is not a number")


def _check_text(_: object, field: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"its {field.name} is not text")  # noqa: TRY004 - one error for all that is wrong with a state


@attrs.frozen
class DamagedSpan:
    """A damaged span, or a record that is not what the index says."""

    file: str = attrs.field(validator=_check_text)
    offset: int = attrs.field(validator=_check_count)
    size: int = attrs.field(validator=_check_count)
    reason: str = attrs.field(validator=_check_text)
    msg_id: str | None = attrs.field(default=None, validator=attrs.validators.optional(_check_text))
    """In hexadecimal; None if it is no live record."""


@attrs.define
class ScrubState:
    """What a scrub has done, up to and including the segment ``behind``."""

    behind: int = attrs.field(default=-1, validator=_check_count)
    segments: int = attrs.field(default=0, validator=_check_count)
    records: int = attrs.field(default=0, validator=_check_count)
    bytes: int = attrs.field(default=0, validator=_check_count)
    spots: list[DamagedSpan] = attrs.field(factory=list)


def read_state(files: Files, directory: Path) -> ScrubState | None:
    """None if there is none. Raises ValueError for what no scrub has written, OSError."""
    try:
        with files.view(directory / STATE) as data:
            return parse_state(data)
    except FileNotFoundError:
        return None


def parse_state(data: Buffer) -> ScrubState:
    """Raises ValueError for what no scrub has written. A right checksum is no proof: who can write the file can make one."""
    if len(data) > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST} bytes")
    try:
        members = json.loads(data[:])
        if members.pop("crc32") != _checksum(members):
            raise ValueError("its checksum is wrong")
        if members.pop("layout") != _LAYOUT:
            raise ValueError("it was written by a newer msgstore")
        members["spots"] = [DamagedSpan(**spot) for spot in members["spots"]]
        state = ScrubState(**members)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it is not what a scrub writes") from error
    if not all((spot.file + spot.reason + (spot.msg_id or "")).isprintable() for spot in state.spots):
        raise ValueError("it has more than lines of text in it")
    return state


def write_state(files: Files, directory: Path, state: ScrubState) -> None:
    """Atomically; not synced: after a power loss an older one, or none, serves as well. Raises OSError."""
    members: dict[str, Any] = {"layout": _LAYOUT, **attrs.asdict(state)}
    text = json.dumps({**members, "crc32": _checksum(members)})
    files.write_file(directory / STATE, [text.encode() + b"\n"], sync=False)


def remove_state(files: Files, directory: Path) -> None:
    files.unlink(directory / STATE)


def _checksum(members: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())
