"""Fills the columns of a scan, a batch of records at a time."""

from __future__ import annotations

from msgstore.contract import Columns, SegmentScan


class Collector:
    """Enters records into ``scan.records`` and, at the end, moves the later copies of an id to ``scan.duplicates``.

    Batches keep the Python objects of a scan few: of a whole segment only the ids are held, to tell copies by.
    """

    def __init__(self, scan: SegmentScan) -> None:
        self._scan = scan
        self._seen: set[bytes] = set()

    def take(self, ids: list[bytes], offsets: list[int], sizes: list[int], types: bytes | bytearray) -> None:
        """Enter records side by side, in the order of their offsets."""
        self._seen.update(ids)
        records = self._scan.records
        records.ids += b"".join(ids)
        records.offsets.fromlist(offsets)
        records.sizes.fromlist(sizes)
        records.types += types

    def finish(self) -> None:
        """Called once, after the last batch."""
        everything = self._scan.records
        if len(self._seen) == len(everything):
            return
        self._scan.records = Columns()
        self._seen.clear()
        for row in everything.rows():
            columns = self._scan.duplicates if row[0] in self._seen else self._scan.records
            columns.add(*row)
            self._seen.add(row[0])
