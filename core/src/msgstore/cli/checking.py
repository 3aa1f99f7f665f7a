"""Checks of ``verify``: each index entry against a scan of its segment, and against a client's read.

Also lists the damage that an opening found, for other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs

from msgstore.cli.consistency import Inconsistency, find_inconsistencies
from msgstore.cli.stores import StoreTarget
from msgstore.contract import CorruptRecord, SegmentScan, SegmentStats, StoreIOError
from msgstore.engine.backends import resolve
from msgstore.engine.client import Client
from msgstore.engine.open.settings import known_settings
from msgstore.engine.store import Store, StoredMessage
from msgstore.files import Files
from msgstore.jobs.reports import SpanReport
from msgstore.scan import FormatSet, SegmentReport, damaged_spans, scan_file


@attrs.frozen
class Unreachable:
    """A live message that cannot be read, or whose record is not where the index says."""

    msg_id: bytes
    offset: int
    size: int
    reason: str


@attrs.frozen(kw_only=True)
class SegmentCheck:
    """Result of the check of one segment."""

    path: Path
    format: str
    size: int
    report: SegmentReport | None
    """None if the segment is missing and only the index knows it."""
    live_count: int
    live_bytes: int
    entries: int
    entry_bytes: int
    verified: int
    unreachable: list[Unreachable]
    findings: list[Inconsistency]

    @property
    def counts_agree(self) -> bool:
        """True if the segment's row has the counts of the index."""
        return self.live_count == self.entries and self.live_bytes == self.entry_bytes

    @property
    def ok(self) -> bool:
        """True if nothing is wrong with the segment."""
        return self.report is not None and not self.report.is_damaged and not self.unreachable and not self.findings

    def without_records(self) -> SegmentCheck:
        """Return a copy without the records of the scan, which can be kept until the end."""
        if self.report is None:
            return self
        scan = self.report.scan
        slim = SegmentScan(header=scan.header, damage=scan.damage, end=scan.end)
        return attrs.evolve(self, report=attrs.evolve(self.report, scan=slim))

    def as_json(self) -> dict[str, Any]:
        scan = self.report.scan if self.report else SegmentScan()
        return {
            "kind": "segment",
            "path": str(self.path),
            "format": self.format,
            "size": self.size,
            "found": self.report is not None,
            "header": scan.header,
            "records": len(scan.records),
            "holes": len(scan.hole_offsets),
            "duplicates": len(scan.duplicates),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
            "live_count": self.live_count,
            "live_bytes": self.live_bytes,
            "counts_agree": self.counts_agree,
            "verified": self.verified,
            "unreachable": [
                {"id": entry.msg_id.hex(), "offset": entry.offset, "size": entry.size, "reason": entry.reason}
                for entry in self.unreachable
            ],
            "findings": [finding.as_json() for finding in self.findings],
            "ok": self.ok,
        }


def damage_at_opening(target: StoreTarget, store: Store) -> list[SpanReport]:
    """Return the damaged spans of the segments in which this opening found damage, and the missing segments. Call it before a
    collection."""
    formats = resolve(target.config, target.catalogue, known_settings(Files(), target.config, target.catalogue)).formats
    recovery = store.stats().recovery
    names = dict.fromkeys(line.partition(" at offset ")[0] for line in recovery.damaged[: -len(recovery.lost) or None])
    spans = [
        SpanReport(str(target.path / lost.file), lost.found or 0, max(0, lost.size - (lost.found or 0)), lost.reason)
        for lost in recovery.lost
    ]
    for path in (target.path / name for name in names):
        report = scan_file(Files(), path, formats.by_extension(path.suffix))
        spans += [SpanReport(str(path), span.offset, span.size, span.reason) for span in damaged_spans(report)]
    return spans


def check_segments(target: StoreTarget, store: Store, progress: Callable[[int, int], object] | None) -> Iterator[SegmentCheck]:
    """Yield one check per segment, in number order. Keeps the records of one segment in memory at a time."""
    formats = resolve(target.config, target.catalogue, known_settings(Files(), target.config, target.catalogue)).formats
    by_number = groupby(store.entries(), key=lambda entry: entry.number)
    segments = store.segments()
    group = next(by_number, None)
    with store.client() as client:
        for at, segment in enumerate(segments):
            while group is not None and group[0] < segment.number:
                yield _check_lost(target, group[0], list(group[1]))
                group = next(by_number, None)
            entries: list[StoredMessage] = []
            if group is not None and group[0] == segment.number:
                entries = list(group[1])
                group = next(by_number, None)
            yield _check(target.path / segment.file, formats, client, segment, entries)
            if progress:
                progress(at + 1, len(segments))
        while group is not None:
            yield _check_lost(target, group[0], list(group[1]))
            group = next(by_number, None)


def _check(path: Path, formats: FormatSet, client: Client, segment: SegmentStats, entries: list[StoredMessage]) -> SegmentCheck:
    """Check one segment. An entry is unreachable if it cannot be read, or if the scan does not list its record."""
    report = scan_file(Files(), path, formats.by_name(segment.format))
    scanned = {row[:3] for columns in (report.scan.records, report.scan.duplicates) for row in columns.rows()}
    unreachable = []
    for entry in entries:
        try:
            client.read(entry.msg_id)
            reason = None if (entry.msg_id, entry.offset, entry.size) in scanned else "not_in_scan"
        except CorruptRecord as error:
            reason = error.reason
        except StoreIOError as error:
            reason = str(error)
        if reason is not None:
            unreachable.append(Unreachable(entry.msg_id, entry.offset, entry.size, reason))
    return SegmentCheck(
        path=path,
        format=segment.format,
        size=report.size,
        report=report,
        live_count=segment.live_count,
        live_bytes=segment.live_bytes,
        entries=len(entries),
        entry_bytes=sum(entry.size for entry in entries),
        verified=len(entries) - len(unreachable),
        unreachable=unreachable,
        findings=list(find_inconsistencies(segment, report.size, entries)),
    )


def _check_lost(target: StoreTarget, number: int, entries: list[StoredMessage]) -> SegmentCheck:
    """Return the check of a missing segment: all its entries are unreachable."""
    return SegmentCheck(
        path=target.path / str(number),
        format="?",
        size=0,
        report=None,
        live_count=0,
        live_bytes=0,
        entries=len(entries),
        entry_bytes=sum(entry.size for entry in entries),
        verified=0,
        unreachable=[Unreachable(entry.msg_id, entry.offset, entry.size, "segment_missing") for entry in entries],
        findings=[],
    )
