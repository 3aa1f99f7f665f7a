"""Check of a store, segment by segment: every byte against the format, every live record against the index, and the counts.

Segments can be read at a limited rate. Bytes that the disk cannot read are damage, and the rest is checked.
"""

from __future__ import annotations

import errno
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs

from msgstore.cli.options import StoreTarget
from msgstore.contract import MessageNotFound, MsgStoreError, RecordError, SegmentScan, SegmentStats
from msgstore.engine.segment.segment import io_errors
from msgstore.engine.stats import StoredMessage
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.reports import SpanReport
from msgstore.scan import OpenFormat, damaged_spans, scan_file

NOT_IN_SCAN = "not_in_scan"
"""Reason for a live record that a scan finds with another id or size, or passes over because the one before it is damaged."""
MAX_READS = 3
"""Reads of a segment that the collector changes meanwhile."""
CHUNK = 2**18
"""Bytes per read: the largest burst, and the span that counts as unreadable around a read error."""
_COUNT = attrs.validators.ge(-1)


@attrs.frozen
class DamagedSpan:
    """A damaged span, or a record that does not match the index."""

    file: str
    offset: int = attrs.field(validator=_COUNT)
    size: int = attrs.field(validator=_COUNT)
    reason: str
    msg_id: str | None = None
    """Hexadecimal id, or None if it is not a live record."""

    def as_json(self, directory: Path) -> dict[str, Any]:
        return {**SpanReport(str(directory / self.file), self.offset, self.size, self.reason).as_json(), "id": self.msg_id}

    def as_report(self, directory: Path) -> SpanReport:
        """Return the span for people: its reason names the message of a live record."""
        reason = self.reason if self.msg_id is None else f"{self.reason}: message {self.msg_id}"
        return SpanReport(str(directory / self.file), self.offset, self.size, reason)


@attrs.frozen
class Inconsistency:
    """A contradiction between index, counts and segments. Without an id it concerns the whole segment."""

    file: str
    what: str
    detail: str
    msg_id: str | None = None
    offset: int | None = attrs.field(default=None, validator=attrs.validators.optional(_COUNT))
    size: int | None = attrs.field(default=None, validator=attrs.validators.optional(_COUNT))


@attrs.define
class SegmentCheck:
    """Result of the check of one segment against index and counts."""

    number: int
    path: Path
    entries: Sequence[StoredMessage]
    segment: SegmentStats | None = None
    """None if only the index knows the segment."""
    spans: list[DamagedSpan] = attrs.field(factory=list)
    """By offset, at most one per offset."""
    read: int = 0
    """Bytes read. More than the size if the file was read again."""
    size: int = 0
    scan: SegmentScan | None = None
    """None if the file is missing."""
    findings: list[Inconsistency] = attrs.field(factory=list)

    @property
    def counts_agree(self) -> bool:
        counts = (self.segment.live_count, self.segment.live_bytes) if self.segment else (0, 0)
        return counts == (len(self.entries), sum(entry.size for entry in self.entries))

    @property
    def unreachable(self) -> list[DamagedSpan]:
        """Live records that cannot be read."""
        return [span for span in self.spans if span.msg_id is not None]

    def as_json(self) -> dict[str, Any]:
        scan, segment, unreachable = self.scan or SegmentScan(), self.segment, self.unreachable
        return {
            "kind": "segment",
            "path": str(self.path),
            "format": segment.format if segment else "?",
            "size": self.size,
            "found": self.scan is not None,
            "header": scan.header,
            "records": len(scan.records),
            "holes": len(scan.hole_offsets),
            "duplicates": len(scan.duplicates),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
            "live_count": segment.live_count if segment else 0,
            "live_bytes": segment.live_bytes if segment else 0,
            "counts_agree": self.counts_agree,
            "verified": len(self.entries) - len(unreachable),
            "unreachable": [{"id": s.msg_id, "offset": s.offset, "size": s.size, "reason": s.reason} for s in unreachable],
            "findings": [
                {"what": f.what, "id": f.msg_id, "offset": f.offset, "size": f.size, "detail": f.detail} for f in self.findings
            ],
            "ok": self.scan is not None and not self.spans and not self.findings,
        }


@attrs.frozen
class Checker:
    """Checks segments against the index."""

    files: Files
    read: Callable[[bytes], bytes]
    """A client's method: a message that it can read was moved, not damaged."""
    decode_body: Callable[[bytes, bytes], bytes]
    """That of :class:`msgstore.engine.backends.Backends`."""
    rate: int | None = None
    """Most bytes per second, or None for no limit. A pause after each read keeps it."""

    def check(self, check: SegmentCheck, form: OpenFormat) -> None:
        """Check one segment. Raises OSError.

        A store that is open elsewhere may be collected meanwhile. Therefore a changed segment is read again. A record is
        damaged only if a client cannot read the message either. In a segment with unreadable bytes, only the live messages are
        checked.
        """
        path = check.path
        for _ in range(MAX_READS):
            try:
                state, check.spans = self._read_throttled(path)
                check.read += state[0]
                check.scan = SegmentScan()
                if check.spans:  # access to a mapping there would kill the process
                    check.spans += self.find_lost(check.entries, path, "unreadable")
                else:
                    self._compare(check, form)
                check.size = state[0]
                if not check.spans or self._state(path) == state:
                    break
            except FileNotFoundError:
                check.spans, check.scan = self.find_lost(check.entries, path, "segment_missing"), None
                return
        check.spans.sort(key=lambda span: span.offset)

    def _state(self, path: Path) -> tuple[int, int]:
        """Return size and time. Raises OSError."""
        with self.files.closing(self.files.open_read(path)) as fd:
            return self.files.size_and_mtime(fd)

    def _read_throttled(self, path: Path) -> tuple[tuple[int, int], list[DamagedSpan]]:
        """Read the file, less the holes of a sparse one. Return size and time before, and spans that the disk cannot read."""
        fd = self.files.open_read(path)
        try:
            state = size, _ = self.files.size_and_mtime(fd)
            unreadable = []
            offset = self.files.next_stored(fd, 0)
            while offset < size:
                length = min(CHUNK, size - offset)
                try:
                    self.files.pread(fd, length, offset)
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    unreadable.append(DamagedSpan(path.name, offset, length, "unreadable"))
                if self.rate:
                    time.sleep(length / self.rate)
                offset = self.files.next_stored(fd, offset + length)
        finally:
            self.files.close(fd)
        return state, unreadable

    def _compare(self, check: SegmentCheck, form: OpenFormat) -> None:
        """Find the damage that the format finds, and the live records that do not match the index: these win."""
        path = check.path
        report = scan_file(self.files, path, form)
        check.scan = scan = report.scan
        found = {s.offset: DamagedSpan(path.name, s.offset, s.size, s.reason) for s in damaged_spans(report)}
        scanned = {row[:3] for columns in (scan.records, scan.duplicates) for row in columns.rows()}
        offsets = {offset for _, offset, _ in scanned}
        with self.files.view(path) as data, io_errors(path):
            for entry in check.entries:
                record = data[entry.offset : entry.offset + entry.size]
                reason = "size_mismatch" if len(record) != entry.size else None
                try:
                    if reason is None:
                        self.decode_body(entry.msg_id, form.decode(entry.msg_id, record))
                except RecordError as error:
                    reason = error.reason
                if reason is not None:
                    found |= {span.offset: span for span in self.find_lost([entry], path, reason)}
                elif entry.offset < scan.end.offset and (entry.msg_id, entry.offset, entry.size) not in scanned:
                    span = _span(entry, path, NOT_IN_SCAN)
                    is_hidden = entry.offset not in offsets  # in what the scan takes for the record before it: it can be read
                    found[entry.offset] = attrs.evolve(span, msg_id=None) if is_hidden else span
        check.spans = list(found.values())

    def find_lost(self, entries: Iterable[StoredMessage], path: Path, reason: str) -> list[DamagedSpan]:
        """Return a span for each record that no client can read. Messages that were moved or removed are not lost."""
        lost = []
        for entry in entries:
            try:
                self.read(entry.msg_id)
            except MessageNotFound:
                pass
            except MsgStoreError:
                lost.append(_span(entry, path, reason))
        return lost


def _span(entry: StoredMessage, path: Path, reason: str) -> DamagedSpan:
    return DamagedSpan(path.name, entry.offset, entry.size, reason, entry.msg_id.hex())


def check_segments(target: StoreTarget, store: Store, rate: int | None, behind: int = -1) -> Iterator[SegmentCheck]:
    """Yield one check per segment above the number ``behind``, in number order. Keeps the records of one segment in memory.

    If a writer has the store open, its counts change meanwhile and are not compared.
    """
    backends = target.backends()
    is_live = store.stats().recovery.how == "live"
    entries = ((entry.number, 1, entry) for entry in store.entries())
    segments = ((segment.number, 0, segment) for segment in store.segments())
    merged: Iterator[tuple[int, int, Any]] = heapq.merge(segments, entries, key=lambda item: item[:2])
    with store.client() as client:
        checker = Checker(Files(), client.read, backends.decode_body, rate)
        for number, group in groupby(merged, key=lambda item: item[0]):
            items = [item for _, _, item in group]
            if number <= behind:
                continue
            segment = items.pop(0) if isinstance(items[0], SegmentStats) else None
            check = SegmentCheck(number, target.path / (segment.file if segment else str(number)), items, segment)
            if segment is None:
                check.spans = checker.find_lost(items, check.path, "segment_missing")
            else:
                checker.check(check, backends.formats.by_name(segment.format))
                check.findings = [] if is_live else list(_find_inconsistencies(segment, check.size, items))
            yield check


def _find_inconsistencies(segment: SegmentStats, file_size: int, entries: Iterable[StoredMessage]) -> Iterator[Inconsistency]:
    """Yield the contradictions of index, counts and segment. Reads no record.

    ``entries``: all index entries of the segment, by offset. ``file_size``: size of the file, not of the segment's row.
    """
    count = total = end = 0
    previous: StoredMessage | None = None
    for entry in entries:
        place = entry.msg_id.hex(), entry.offset, entry.size
        if entry.references < 1:
            yield Inconsistency(segment.file, "no_reference", f"{entry.references} references", *place)
        if entry.offset < segment.header_bytes or entry.offset + entry.size > file_size:
            inside = f"the segment's records are between {segment.header_bytes} and {file_size}"
            yield Inconsistency(segment.file, "outside_the_segment", inside, *place)
        if previous is not None and entry.offset == previous.offset:
            yield Inconsistency(segment.file, "same_place", f"so is {previous.msg_id.hex()}", *place)
        elif previous is not None and entry.offset < end:
            yield Inconsistency(
                segment.file, "overlap", f"the record before it, {previous.msg_id.hex()}, ends at {end}", *place
            )
        count, total = count + 1, total + entry.size
        previous, end = entry, max(end, entry.offset + entry.size)
    for what, row, index in (("live_count", segment.live_count, count), ("live_bytes", segment.live_bytes, total)):
        if row != index:
            noun = what.replace("_count", " records").replace("_", " ")
            yield Inconsistency(segment.file, what, f"the segment's row counts {row} {noun}, the index has {index}")
