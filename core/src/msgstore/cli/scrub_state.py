"""Progress of a check: ``msgstore-scrub.json`` in the store's directory, so that a stopped check can be resumed.

The file saves time and holds no data. If it is damaged, the check reports that and starts at the first segment.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from msgstore.cli.output import note
from msgstore.config import structure
from msgstore.contract import Buffer, ConfigError
from msgstore.engine.stats import StoredMessage
from msgstore.files import Files
from msgstore.jobs.reports import SpanReport

STATE = "msgstore-scrub.json"
_LAYOUT = 1
_COUNT = attrs.validators.ge(-1)
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

    @classmethod
    def of(cls, entry: StoredMessage, path: Path, reason: str) -> DamagedSpan:
        """Return the span of a live record in the segment ``path``."""
        return cls(path.name, entry.offset, entry.size, reason, entry.msg_id.hex())

    def as_json(self, directory: Path) -> dict[str, Any]:
        place = {"path": str(directory / self.file), "offset": self.offset, "size": self.size}
        return {"kind": "damage", **place, "reason": self.reason, "id": self.msg_id}

    def as_report(self, directory: Path) -> SpanReport:
        """Return the span for people: its reason names the message of a live record."""
        reason = self.reason if self.msg_id is None else f"{self.reason}: message {self.msg_id}"
        return SpanReport(str(directory / self.file), self.offset, self.size, reason)


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
    def unreachable(self) -> int:
        """Number of live messages that cannot be read."""
        return sum(span.msg_id is not None for span in self.spots)


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
        state = structure(ScrubState, members, "")
    except (ConfigError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it is not what a check writes") from error
    found: list[DamagedSpan | Finding] = [*state.spots, *state.findings]
    texts = (text for one in found for text in attrs.astuple(one) if isinstance(text, str))
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


def load_state(files: Files, directory: Path) -> ScrubState:
    """Return the saved state, or a new one if it is missing or damaged. Says on standard error which it is."""
    try:
        with files.view(directory / STATE) as data:
            state = parse_state(data)
    except FileNotFoundError:
        return ScrubState()
    except ValueError as error:
        note(f"{directory / STATE}: cannot be used: {error}. Starting at the first segment.")
        return ScrubState()
    note(f"{directory}: resumed after segment {state.behind}. Without --resume (scrub: with --restart), "
         "the check starts at the first segment.")  # fmt: skip
    return state


def save_state(files: Files, directory: Path, state: ScrubState) -> bool:
    """Write the state. Returns False, and says so on standard error, if it cannot be written."""
    try:
        write_state(files, directory, state)
    except OSError as error:
        note(f"{directory / STATE}: cannot be written: {error.strerror}. If stopped, this check starts again.")
        return False
    return True
