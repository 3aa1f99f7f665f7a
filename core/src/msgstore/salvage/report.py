"""What a salvage found and did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Columns


@attrs.frozen
class SpanReport:
    """Bytes of an input that are not what was written, or that hold no whole record."""

    path: Path
    offset: int
    size: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": "damage", "path": str(self.path), "offset": self.offset, "size": self.size, "reason": self.reason}


@attrs.define
class InputReport:
    """One segment of the source, byte by byte: ``header + good + duplicates + holes + damaged == size``."""

    path: Path
    format: str
    size: int = 0
    header: int = 0
    good: int = 0
    """Bytes of the records that were copied."""
    duplicates: int = 0
    """Bytes of the records of which another copy was taken."""
    holes: int = 0
    damaged: int = 0
    records: int = 0
    """Records that were copied."""
    recovered: Columns = attrs.field(factory=Columns)
    """Those of them that were found again behind a damaged spot."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "input",
            "path": str(self.path),
            "format": self.format,
            "size": self.size,
            "header": self.header,
            "good": self.good,
            "duplicates": self.duplicates,
            "holes": self.holes,
            "damaged": self.damaged,
            "records": self.records,
            "recovered": len(self.recovered),
        }

    def recovered_as_json(self) -> Iterator[dict[str, Any]]:
        for msg_id, offset, size, _ in self.recovered.rows():
            yield {"kind": "recovered", "path": str(self.path), "offset": offset, "size": size, "id": msg_id.hex()}


@attrs.define
class SalvageReport:
    """The whole of it. Whether a record was dead cannot be told without its index: every good one is copied, once."""

    source: Path
    destination: Path
    inputs: list[InputReport] = attrs.field(factory=list)
    """In the order in which they were read: the highest number first."""
    damage: list[SpanReport] = attrs.field(factory=list)
    ignored: list[str] = attrs.field(factory=list)
    """Names in the source that are no segments of an installed format, and were left out."""

    @property
    def messages(self) -> int:
        return sum(found.records for found in self.inputs)

    @property
    def recovered(self) -> int:
        return sum(len(found.recovered) for found in self.inputs)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "summary",
            "source": str(self.source),
            "destination": str(self.destination),
            "segments": len(self.inputs),
            "messages": self.messages,
            "recovered": self.recovered,
            "damaged_spans": len(self.damage),
            "size": sum(found.size for found in self.inputs),
            "header": sum(found.header for found in self.inputs),
            "good": sum(found.good for found in self.inputs),
            "duplicates": sum(found.duplicates for found in self.inputs),
            "holes": sum(found.holes for found in self.inputs),
            "damaged": sum(found.damaged for found in self.inputs),
            "ignored": self.ignored,
        }
