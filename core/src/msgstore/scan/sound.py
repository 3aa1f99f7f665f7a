"""Checks of the scan result of a segment format, before bytes are truncated, overwritten or left out of an index because of it.

Two rules hold for every format. The records are columns of equal length, and they follow one another inside the file. With a
result that breaks them, a compaction would truncate live messages.
"""

from __future__ import annotations

from array import array
from operator import add, ge
from typing import get_args

from msgstore.contract import Buffer, CheckBody, Columns, ScanEnd, SegmentFormat, SegmentScan
from msgstore.contract.formats import EndState

_STATES = get_args(EndState)
_BYTES = bytes, bytearray, memoryview


def scan_checked(form: SegmentFormat, data: Buffer, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
    """Return the format's scan of ``data``. Raises ValueError for an impossible result, TypeError for anything but a scan."""
    scan = form.scan(data, start=start, check_body=check_body)
    if not isinstance(scan, SegmentScan):
        raise TypeError(f"the scan returns {type(scan).__name__}, not a SegmentScan")
    total = len(data)
    _check_end(scan.end, start, total)
    _check_columns(scan.records, "records", start, total)
    _check_columns(scan.duplicates, "duplicates", start, total)
    _check_spans(scan.hole_offsets, scan.hole_sizes, "holes", 0, total)
    return scan


def _check_end(end: ScanEnd, start: int, total: int) -> None:
    if not isinstance(end, ScanEnd) or end.state not in _STATES or type(end.offset) is not int:
        raise TypeError(f"the scan returns the end {end!r}")
    if not 0 <= end.offset <= max(start, total) or (end.state == "clean" and end.offset < total):
        raise ValueError(f"the scan returns a {end.state} end at offset {end.offset} of {total} bytes")


def _check_columns(columns: Columns, what: str, start: int, total: int) -> None:
    if not isinstance(columns, Columns) or not isinstance(columns.ids, _BYTES) or not isinstance(columns.types, _BYTES):
        raise TypeError(f"the scan returns {what} that are not Columns")
    _check_spans(columns.offsets, columns.sizes, what, start, total)
    if not len(columns.ids) == 16 * len(columns.offsets) == 16 * len(columns.types):
        raise ValueError(f"the scan returns {what} in columns of different lengths")


def _check_spans(offsets: array[int], sizes: array[int], what: str, start: int, total: int) -> None:
    """Check that spans are ordered, do not overlap, and lie inside the file. Costs 60 ns per span."""
    for column in (offsets, sizes):
        if not isinstance(column, array) or column.typecode in "fd" or not isinstance(column[0] if column else 0, int):
            raise TypeError(f"the scan returns {what} whose offsets and sizes are not arrays of integers")
    if len(offsets) != len(sizes):
        raise ValueError(f"the scan returns {what} in columns of different lengths")
    if not offsets:
        return
    if min(sizes) < (1 if what == "records" else 0):
        raise ValueError(f"the scan returns {what} of size 0")
    if not all(map(ge, offsets[1:], map(add, offsets, sizes))):
        raise ValueError(f"the scan returns {what} that overlap or are not ordered by offset")
    if offsets[0] < start or offsets[-1] + sizes[-1] > total:
        raise ValueError(f"the scan returns {what} outside the {total} bytes of the file")
