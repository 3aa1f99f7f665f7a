"""Parts of several reports: damage, files that were not read, statistics of a segment; and the report of a salvage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from msgstore.contract import Columns, Damage
from msgstore.jobs.not_read import NotRead

SETTINGS_DAMAGED = "settings_damaged"
"""The reason of a ``msgstore.json`` that cannot be read; record types of assigned bytes are then tried as well."""
TOO_LARGE = "message_too_large"
"""The reason of a record whose body does not fit into one of the new store's format."""


_BYTES = ("size", "header", "good", "duplicates", "dead", "holes", "damaged")
"""Attributes of an :class:`InputReport` that are numbers of bytes."""


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
    def other(self) -> int:
        """Bytes that the format keeps for itself."""
        return self.size - self.header - self.record_bytes - self.hole_bytes - self.duplicate_bytes - self.damaged

    @property
    def used(self) -> int:
        """All that stands behind the header."""
        return self.size - self.header

    @property
    def garbage(self) -> int:
        """Bytes that a collection could free: holes, later copies, and known dead records."""
        dead = 0 if self.live_bytes is None else self.record_bytes - self.live_bytes
        return dead + self.hole_bytes + self.duplicate_bytes

    def as_json(self) -> dict[str, Any]:
        return {"kind": "segment", **attrs.asdict(self), "garbage": self.garbage}


@attrs.define
class InputReport:
    """One segment of the source, byte by byte: ``header + good + duplicates + dead + holes + damaged == size``."""

    path: str
    format: str
    size: int = 0
    header: int = 0
    good: int = 0
    """Bytes of the records that were copied."""
    duplicates: int = 0
    """Bytes of the records of which another copy was taken."""
    dead: int = 0
    """Bytes of the records that no reference is left to; 0 if no counts were given."""
    holes: int = 0
    damaged: int = 0
    records: int = 0
    """Records that were copied."""
    recovered: Columns = attrs.field(factory=Columns)
    """Those of them that were found again behind a damaged spot."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "input", **attrs.asdict(self, recurse=False), "recovered": len(self.recovered)}

    def recovered_as_json(self) -> Iterator[dict[str, Any]]:
        for msg_id, offset, size, _ in self.recovered.rows():
            yield {"kind": "recovered", "path": self.path, "offset": offset, "size": size, "id": msg_id.hex()}


@attrs.define
class SalvageReport(Findings):
    """The whole of it. Whether a record was dead cannot be told without counts: then every good one is copied, once."""

    sources: tuple[str, ...]
    destination: str
    inputs: list[InputReport] = attrs.field(factory=list)
    """In the order in which copies were preferred: the highest number of a store first."""
    missing: int = 0
    """Messages that the counts name and of which there is no intact record."""

    @property
    def messages(self) -> int:
        return sum(found.records for found in self.inputs)

    @property
    def recovered(self) -> int:
        return sum(len(found.recovered) for found in self.inputs)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "summary",
            "sources": list(self.sources),
            "destination": self.destination,
            "segments": len(self.inputs),
            "messages": self.messages,
            "recovered": self.recovered,
            "missing": self.missing,
            "damaged_spans": len(self.damage),
            **{name: sum(getattr(found, name) for found in self.inputs) for name in _BYTES},
            "ignored": self.ignored,
        }
