"""Parts of several reports: damage, files that were not read, statistics of a segment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from msgstore.contract import Damage
from msgstore.jobs.not_read import NotRead

SETTINGS_DAMAGED = "settings_damaged"
"""The reason of a ``msgstore.json`` that cannot be read; record types of assigned bytes are then tried as well."""


@attrs.frozen
class SpanReport:
    """Bytes of an input that are not what was written, or that hold no whole record."""

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
    """Files beside the segments that are none of an installed format, and were left out."""
    not_read: list[NotRead] = attrs.field(factory=list)
    """Files in directories of a broker that were recognised and not read."""

    def add_damage(self, path: str, spans: Iterable[Damage]) -> None:
        """Add the damaged spans of one segment."""
        self.damage += [SpanReport(path, span.offset, span.size, span.reason) for span in spans]

    def summary(self, **members: Any) -> dict[str, Any]:
        """Return the last object of ``--json``: ``members``, and those that every report has."""
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
class SegmentStock:
    """One segment in numbers: ``header + record_bytes + hole_bytes + duplicate_bytes + damaged + other == size``."""

    path: str
    format: str
    size: int
    state: str
    """How reading ended: ``clean``, ``torn``, ``corrupt``, or ``unreadable``."""
    header: int = 0
    records: int = 0
    """Whole, undamaged ones, as a scan reports them: of copies of an id in a segment the first."""
    record_bytes: int = 0
    types: dict[str, int] = attrs.field(factory=dict)
    """How many records there are of each type, if the format has types."""
    live: int | None = None
    """Records with references that a store would read; None if unknown."""
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
        """All that stands behind the header."""
        return self.size - self.header

    @property
    def other(self) -> int:
        """Bytes that the format keeps for itself."""
        return self.used - self.record_bytes - self.hole_bytes - self.duplicate_bytes - self.damaged

    @property
    def garbage(self) -> int:
        """Bytes that a collection could free: holes, later copies, and known dead records."""
        dead = 0 if self.live_bytes is None else self.record_bytes - self.live_bytes
        return dead + self.hole_bytes + self.duplicate_bytes

    def as_json(self) -> dict[str, Any]:
        return {"kind": "segment", **attrs.asdict(self), "garbage": self.garbage}
