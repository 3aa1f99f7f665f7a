"""Scan of one segment file, and its report."""

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
    """Result of the scan of one file."""

    path: Path
    format: OpenFormat
    size: int
    scan: SegmentScan
    values: Mapping[int, Values | None] = attrs.field(factory=dict)
    """Offset to the fields of each record whose type has fields, if requested. Values are in the order of
    ``format.with_fields[type byte].fields``; None if the fields cannot be read."""

    @property
    def is_damaged(self) -> bool:
        """True for torn and corrupt ends, bad headers and failed checks. Duplicates alone are no damage."""
        return self.scan.end.state != "clean" or self.scan.header not in (None, "ok") or bool(self.scan.damage)

    def count_types(self) -> dict[str, int]:
        """Return record type name to number of records. Empty if records have no types."""
        names = self.format.type_names
        return {names.get(byte, str(byte)): count for byte, count in sorted(Counter(self.scan.records.types).items()) if byte}

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``msgstore scan --json`` prints for the segment."""
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
        """Return the member ``fields``, or nothing if the type has no fields or they were not requested."""
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
    """Scan the segment ``path``. With ``fields``, also read the fields of its records.

    Raises OSError if the file cannot be read, and BrokenPlugin if the format fails or fields do not fit their descriptor. The
    bytes of the file cause no other exception.
    """
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
    """Return every damaged span of a segment. Nothing after a bad end is read, so that is one span."""
    scan = report.scan
    spans = list(scan.damage)
    if scan.header not in (None, "ok"):
        spans.insert(0, Damage(0, min(len(report.format.format.header), report.size), str(scan.header)))
    if scan.end.state != "clean":
        spans.append(Damage(scan.end.offset, report.size - scan.end.offset, scan.end.reason or scan.end.state))
    return spans
