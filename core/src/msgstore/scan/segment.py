"""One segment file, read and described."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Columns, SegmentScan
from msgstore.files import Files
from msgstore.scan.formats import OpenFormat


@attrs.frozen
class SegmentReport:
    """What a scan found in one file."""

    path: Path
    format: OpenFormat
    size: int
    scan: SegmentScan

    @property
    def is_damaged(self) -> bool:
        """True for torn and corrupt ends, bad headers and failed checks; duplicates alone are fine."""
        return self.scan.end.state != "clean" or self.scan.header not in (None, "ok") or bool(self.scan.damage)

    def as_json(self) -> dict[str, Any]:
        """The object that ``msgstore scan --json`` prints for the segment."""
        scan = self.scan
        return {
            "path": str(self.path),
            "format": self.format.name,
            "size": self.size,
            "header": scan.header,
            "records": self._rows(scan.records),
            "holes": [
                {"offset": offset, "size": size} for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True)
            ],
            "duplicates": self._rows(scan.duplicates),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
        }

    def _rows(self, columns: Columns) -> list[dict[str, Any]]:
        typed = self.format.typed
        return [
            {"offset": offset, "size": size, "type": type_byte if typed else None, "id": msg_id.hex()}
            for msg_id, offset, size, type_byte in columns.rows()
        ]


def scan_file(
    files: Files,
    path: Path,
    form: OpenFormat,
    check_body: Callable[[bytes], bool] | None = None,
) -> SegmentReport:
    """Scan ``path``. Raises OSError if it cannot be read; nothing in its bytes raises."""
    with files.view(path) as data:
        return SegmentReport(path, form, len(data), form.format.scan(data, check_body=check_body))
