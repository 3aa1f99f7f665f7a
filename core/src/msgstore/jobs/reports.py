"""What a salvage or a migration found and did, byte by byte. The same from every engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from msgstore.contract import Columns
from msgstore.jobs.not_read import NotRead

SETTINGS_DAMAGED = "settings_damaged"
"""The reason of a ``msgstore.json`` that cannot be read; record types of assigned bytes are then tried as well."""
TOO_LARGE = "message_too_large"
"""The reason of a record whose body does not fit into one of the new store's format."""


@attrs.frozen
class SpanReport:
    """Bytes of an input that are not what was written, or that hold no whole record."""

    path: str
    offset: int
    size: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": "damage", "path": self.path, "offset": self.offset, "size": self.size, "reason": self.reason}


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
        return {
            "kind": "input",
            "path": self.path,
            "format": self.format,
            "size": self.size,
            "header": self.header,
            "good": self.good,
            "duplicates": self.duplicates,
            "dead": self.dead,
            "holes": self.holes,
            "damaged": self.damaged,
            "records": self.records,
            "recovered": len(self.recovered),
        }

    def recovered_as_json(self) -> Iterator[dict[str, Any]]:
        for msg_id, offset, size, _ in self.recovered.rows():
            yield {"kind": "recovered", "path": self.path, "offset": offset, "size": size, "id": msg_id.hex()}


@attrs.define
class SalvageReport:
    """The whole of it. Whether a record was dead cannot be told without counts: then every good one is copied, once."""

    sources: tuple[str, ...]
    destination: str
    inputs: list[InputReport] = attrs.field(factory=list)
    """In the order in which copies were preferred: the highest number of a store first."""
    damage: list[SpanReport] = attrs.field(factory=list)
    missing: int = 0
    """Messages that the counts name and of which there is no good record."""
    ignored: list[str] = attrs.field(factory=list)
    """Files beside the segments that are none of an installed format, and were left out."""
    not_read: list[NotRead] = attrs.field(factory=list)
    """What was recognised in broker's directories, and not read."""

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
            "size": sum(found.size for found in self.inputs),
            "header": sum(found.header for found in self.inputs),
            "good": sum(found.good for found in self.inputs),
            "duplicates": sum(found.duplicates for found in self.inputs),
            "dead": sum(found.dead for found in self.inputs),
            "holes": sum(found.holes for found in self.inputs),
            "damaged": sum(found.damaged for found in self.inputs),
            "ignored": self.ignored,
        }
