"""Parts of several reports: damage, files of brokers that were not read, statistics of a segment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Damage

SETTINGS_DAMAGED = "settings_damaged"
"""Reason for an unreadable ``msgstore.json``. All record types with assigned bytes are then tried."""
QUEUE_FILES = ("queue indexes", "queue stores")
"""Kinds of files of a broker that a source of messages reads."""
_BROKER_FILES = (
    ("queue indexes", "", re.compile(r"\d+\.(?:idx|qi)|journal\.jif")),
    ("queue stores", "", re.compile(r"\d+\.qs")),
    ("quorum queues", "quorum", re.compile(r"\d+\.(?:wal|segment)")),
    ("streams", "stream", re.compile(r"\d+\.(?:index|segment)")),
)
"""Kind, name of a directory above its files (none: they are in the directories of queues), and pattern of their names. Small
messages are in the indexes of version 1, and in the stores of version 2."""


@attrs.define
class NotRead:
    """Files of one kind below one directory that no tool reads: recognised by name, counted, not opened."""

    path: str
    """Directory, such as ``.../queues``."""
    what: str
    files: int = 0
    size: int = 0
    """Bytes."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "not_read", **attrs.asdict(self)}


def find_not_read(*tops: Path) -> tuple[NotRead, ...]:
    """Search trees, and return the findings by path. A directory counts once; one that cannot be listed is ignored."""
    found: dict[tuple[Path, str], NotRead] = {}
    listed = {Path(directory): (top, names) for top in reversed(tops) for directory, _, names in os.walk(top)}
    for directory, (top, names) in listed.items():
        for what, above, pattern in _BROKER_FILES:
            theirs = [directory / name for name in names if pattern.fullmatch(name)]
            roots = [path for path in (directory, *directory.parents) if path.is_relative_to(top) and path.name == above]
            if not above:
                roots = [top if directory == top else directory.parent]
            if theirs and roots:
                one = found.setdefault((roots[-1], what), NotRead(str(roots[-1]), what))
                one.files += len(theirs)
                one.size += sum(map(_size, theirs))
    return tuple(found[key] for key in sorted(found))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted, or a dangling link
        return 0


@attrs.frozen
class SpanReport:
    """Damaged bytes of an input."""

    path: str
    offset: int
    size: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": "damage", **attrs.asdict(self)}


@attrs.define(kw_only=True)
class Findings:
    """Base of reports: damage and other findings in the inputs of a job."""

    damage: list[SpanReport] = attrs.field(factory=list)
    ignored: list[str] = attrs.field(factory=list)
    """Other files in the directories of segments, which were not read."""
    not_read: list[NotRead] = attrs.field(factory=list)
    """Files of brokers that were recognised and not read."""

    def add_damage(self, path: str, spans: Iterable[Damage]) -> None:
        """Add the damaged spans of one segment."""
        self.damage += [SpanReport(path, span.offset, span.size, span.reason) for span in spans]

    def summary(self, **members: Any) -> dict[str, Any]:
        """Return the last object of ``--json``: ``members``, and the members of every report."""
        return {"kind": "summary", **members, "damaged_spans": len(self.damage), "ignored": self.ignored}

    @property
    def damaged(self) -> int:
        """Damaged bytes."""
        return sum(span.size for span in self.damage)


def sums(parts: Iterable[object], *names: str) -> dict[str, int]:
    """Return the sum of each of these attributes."""
    found = list(parts)
    return {name: sum(getattr(part, name) for part in found) for name in names}


@attrs.define
class ScannedSegment:
    """One segment in numbers: ``header + record_bytes + hole_bytes + duplicate_bytes + damaged + other == size``."""

    path: str
    format: str
    size: int
    state: str
    """State of its end: ``clean``, ``torn``, ``corrupt``, or ``unreadable``; ``corrupt`` also for damage before the end."""
    header: int = 0
    records: int = 0
    """Number of intact records that a scan reports: of several copies of an id in the segment the first."""
    record_bytes: int = 0
    types: dict[str, int] = attrs.field(factory=dict)
    """Number of records of each type; empty if the format has no types."""
    live: int | None = None
    """Number of records that a store would read and that have references; None if unknown."""
    live_bytes: int | None = None
    holes: int = 0
    hole_bytes: int = 0
    duplicates: int = 0
    """Later copies of an id."""
    duplicate_bytes: int = 0
    damaged: int = 0
    quarantined: bool = False
    """True if a store would never collect the segment, because it is damaged."""

    @property
    def used(self) -> int:
        """Bytes after the header."""
        return self.size - self.header

    @property
    def other(self) -> int:
        """Bytes that belong to the format."""
        return self.used - self.record_bytes - self.hole_bytes - self.duplicate_bytes - self.damaged

    @property
    def garbage(self) -> int:
        """Bytes that a collection could free: holes, later copies, and known dead records."""
        dead = 0 if self.live_bytes is None else self.record_bytes - self.live_bytes
        return dead + self.hole_bytes + self.duplicate_bytes

    def as_json(self) -> dict[str, Any]:
        return {"kind": "segment", **attrs.asdict(self), "garbage": self.garbage}
