"""How far a scrub has come: ``msgstore-scrub.json`` in the store's directory, so that one that was stopped goes on.

It is worth time, never data: one that is damaged is said to be, and the scrub begins at the first segment.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import attrs

from msgstore.files import Files

STATE = "msgstore-scrub.json"
_LAYOUT = 1
_LARGEST = 2**26
"""Bytes of a state that is read: hundreds of thousands of damaged spans."""


@attrs.frozen
class Spot:
    """A damaged span, or a record that is not what the index says."""

    file: str
    offset: int
    size: int
    reason: str
    msg_id: str | None = None
    """In hexadecimal; None if it is no live record."""


@attrs.define
class State:
    """What a scrub has done, up to and including the segment ``behind``."""

    behind: int = -1
    segments: int = 0
    records: int = 0
    bytes: int = 0
    spots: list[Spot] = attrs.field(factory=list)


def read_state(files: Files, directory: Path) -> State | None:
    """None if there is none. Raises ValueError for what no scrub has written, OSError."""
    path = directory / STATE
    try:
        with files.view(path) as data:
            if len(data) > _LARGEST:
                raise ValueError(f"it has {len(data)} bytes")
            text = data[:]
    except FileNotFoundError:
        return None
    try:
        members = json.loads(text)
        if members.pop("crc32") != _checksum(members):
            raise ValueError("its checksum is wrong")
        if members.pop("layout") != _LAYOUT:
            raise ValueError("it was written by a newer msgstore")
        members["spots"] = [Spot(**spot) for spot in members["spots"]]
        return State(**members)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it is not what a scrub writes") from error


def write_state(files: Files, directory: Path, state: State) -> None:
    """Atomically; not synced: after a power loss an older one, or none, serves as well. Raises OSError."""
    members: dict[str, Any] = {"layout": _LAYOUT, **attrs.asdict(state)}
    text = json.dumps({**members, "crc32": _checksum(members)})
    files.write_file(directory / STATE, [text.encode() + b"\n"], sync=False)


def remove_state(files: Files, directory: Path) -> None:
    files.unlink(directory / STATE)


def _checksum(members: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())
