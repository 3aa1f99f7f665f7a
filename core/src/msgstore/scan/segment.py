"""One segment file, read and described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import BrokenPlugin, CheckBody, Columns, Damage, SegmentScan
from msgstore.files import Files
from msgstore.scan.fields import Values, fields_as_json, values_at
from msgstore.scan.formats import OpenFormat


@attrs.frozen
class SegmentReport:
    """What a scan found in one file."""

    path: Path
    format: OpenFormat
    size: int
    scan: SegmentScan
    values: Mapping[int, Values | None] = attrs.field(factory=dict)
    """Offset to the fields of each record whose type has some, if they were asked for: in the order of
    ``format.with_fields[type byte].fields``; None if the record cannot say."""

    @property
    def is_damaged(self) -> bool:
        """True for torn and corrupt ends, bad headers and failed checks; duplicates alone are fine."""
        return self.scan.end.state != "clean" or self.scan.header not in (None, "ok") or bool(self.scan.damage)

    def count_types(self) -> dict[str, int]:
        """Record types by name, with the number of their records; empty if records have no types."""
        names = self.format.type_names
        return {names.get(byte, str(byte)): count for byte, count in sorted(Counter(self.scan.records.types).items()) if byte}

    def as_json(self) -> dict[str, Any]:
        """The object that ``msgstore scan --json`` prints for the segment."""
        scan = self.scan
        return {
            "path": str(self.path),
            "format": self.format.name,
            "size": self.size,
            "header": scan.header,
            "records_by_name": self.count_types(),
            "records": self._rows(scan.records),
            "holes": [
                {"offset": offset, "size": size} for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True)
            ],
            "duplicates": self._rows(scan.duplicates),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
        }

    def _rows(self, columns: Columns) -> list[dict[str, Any]]:
        typed, names = self.format.typed, self.format.type_names
        return [
            {
                "offset": offset,
                "size": size,
                "type": type_byte if typed else None,
                "record": names.get(type_byte),
                "id": msg_id.hex(),
                **self._fields(offset, type_byte),
            }
            for msg_id, offset, size, type_byte in columns.rows()
        ]

    def _fields(self, offset: int, type_byte: int) -> dict[str, Any]:
        """Nothing if the record's type has none, or if they were not asked for."""
        if offset not in self.values:
            return {}
        return {"fields": fields_as_json(self.format.with_fields[type_byte], self.values[offset])}


def scan_file(
    files: Files,
    path: Path,
    form: OpenFormat,
    check_body: CheckBody | None = None,
    *,
    fields: bool = False,
) -> SegmentReport:
    """Scan ``path``; with ``fields`` also what its records hold beside their bodies. Raises OSError if it cannot be read, and
    BrokenPlugin if the format fails, or a record type's fields are not what it says; nothing else in its bytes raises."""
    with files.view(path) as data:
        try:
            scan = form.scan(data, check_body=check_body)
        except BrokenPlugin as error:
            raise BrokenPlugin(f"{path}: {error}") from error.__cause__
        try:
            values = values_at(form, data, scan.records, scan.duplicates) if fields else {}
        except BrokenPlugin as error:
            raise BrokenPlugin(f"{path} {error}") from error
        return SegmentReport(path, form, len(data), scan, values)


def damaged_spans(report: SegmentReport) -> list[Damage]:
    """Every span of a segment that is not what was written; behind a bad end nothing was read."""
    found = report.scan
    spots = list(found.damage)
    if found.header not in (None, "ok"):
        spots.insert(0, Damage(0, min(len(report.format.format.header), report.size), str(found.header)))
    if found.end.state != "clean":
        spots.append(Damage(found.end.offset, report.size - found.end.offset, found.end.reason or found.end.state))
    return spots
