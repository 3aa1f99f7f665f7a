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

from msgstore.cli.scrub_state import DamagedSpan, Finding
from msgstore.cli.stores import StoreTarget
from msgstore.contract import BrokenPlugin, Buffer, MessageNotFound, MsgStoreError, RecordError, SegmentScan, SegmentStats
from msgstore.engine.store import Store, StoredMessage
from msgstore.files import Files
from msgstore.scan import OpenFormat, SegmentReport, damaged_spans

MAX_READS = 3
"""Reads of a segment that the collector changes meanwhile."""
CHUNK = 2**18
"""Bytes per read: the largest burst, and the span that counts as unreadable around a read error."""
MAX_CREDIT_SECONDS = 0.25
"""Reading time that can be saved up while the caller processes bytes."""


class Throttle:
    """Limits reading to ``rate`` bytes per second. Without a rate there is no limit."""

    def __init__(
        self,
        rate: int | None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now = now
        self._sleep = sleep
        self._next_read = now()
        """Time at which the next bytes may be read."""

    def spend(self, size: int) -> None:
        """Account for ``size`` bytes that were read. Blocks until the next read is allowed. Unused time is saved for up to
        MAX_CREDIT_SECONDS, so that processing does not reduce the rate."""
        if self._rate:
            now = self._now()
            self._next_read = max(self._next_read, now - MAX_CREDIT_SECONDS) + size / self._rate
            if self._next_read > now:
                self._sleep(self._next_read - now)


@attrs.frozen
class Checked:
    """Result of the check of one segment file."""

    spans: list[DamagedSpan]
    """By offset, at most one per offset."""
    bytes: int = 0
    """Bytes read. More than the size if the file was read again."""
    size: int = 0
    scan: SegmentScan | None = None
    """None if the file is missing."""


class Checker:
    """Checks segments against the index."""

    def __init__(self, files: Files, throttle: Throttle, read: Callable[[bytes], bytes]) -> None:
        """``read`` is a client's method: a message that it can read was moved, not damaged."""
        self._files = files
        self._throttle = throttle
        self._read = read

    def check(self, path: Path, form: OpenFormat, entries: Sequence[StoredMessage]) -> Checked:
        """Check one segment. ``entries``: every live record of the segment. Raises OSError.

        A store that is open elsewhere may be collected meanwhile. Therefore a changed segment is read again. A record is
        damaged only if a client cannot read the message either. In a segment with unreadable bytes, only the live messages are
        checked.
        """
        read = 0
        for _ in range(MAX_READS):
            try:
                state, spans = self._read_throttled(path)
                read += state[0]
                scan = SegmentScan()
                if spans:  # access to a mapping there would kill the process
                    spans += self._lost(path, entries, "unreadable")
                else:
                    with self._files.view(path) as data:
                        scan = _scan(path, form, data)
                        spans = self._compare(path, form, data, scan, entries)
            except FileNotFoundError:
                return Checked(self.check_gone(path, entries), read)
            if not spans or self._files.list(path.parent).get(path.name) == state:
                break
        return Checked(sorted(spans, key=lambda span: span.offset), read, state[0], scan)

    def check_gone(self, path: Path, entries: Iterable[StoredMessage]) -> list[DamagedSpan]:
        """Return the lost live records of a missing segment."""
        return self._lost(path, entries, "segment_missing")

    def _read_throttled(self, path: Path) -> tuple[tuple[int, int], list[DamagedSpan]]:
        """Read the whole file. Return its size and time before, and the spans that the disk cannot read."""
        fd = self._files.open_read(path)
        try:
            state = size, _ = self._files.size_and_mtime(fd)
            unreadable = []
            for offset in range(0, size, CHUNK):
                length = min(CHUNK, size - offset)
                try:
                    self._files.pread(fd, length, offset)
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    unreadable.append(DamagedSpan(path.name, offset, length, "unreadable"))
                self._throttle.spend(length)
        finally:
            self._files.close(fd)
        return state, unreadable

    def _compare(
        self, path: Path, form: OpenFormat, data: Buffer, scan: SegmentScan, entries: Sequence[StoredMessage]
    ) -> list[DamagedSpan]:
        """Return the damage that the format finds, and the live records that do not match the index: these win."""
        report = SegmentReport(path, form, len(data), scan)
        found = {s.offset: DamagedSpan(path.name, s.offset, s.size, s.reason) for s in damaged_spans(report)}
        scanned = {row[:3] for columns in (scan.records, scan.duplicates) for row in columns.rows()}
        for entry in entries:
            reason = _damage(form, data, entry)
            if reason is not None:
                found |= {span.offset: span for span in self._lost(path, [entry], reason)}
            elif entry.offset < scan.end.offset and (entry.msg_id, entry.offset, entry.size) not in scanned:
                found[entry.offset] = _as_span(path, entry, "not_in_scan")
        return list(found.values())

    def _lost(self, path: Path, entries: Iterable[StoredMessage], reason: str) -> list[DamagedSpan]:
        """Return a span for each record that no client can read. Messages that were moved or removed are not lost."""
        lost = []
        for entry in entries:
            try:
                self._read(entry.msg_id)
            except MessageNotFound:
                pass
            except MsgStoreError:
                lost.append(_as_span(path, entry, reason))
        return lost


def _as_span(path: Path, entry: StoredMessage, reason: str) -> DamagedSpan:
    return DamagedSpan(path.name, entry.offset, entry.size, reason, entry.msg_id.hex())


def _scan(path: Path, form: OpenFormat, data: Buffer) -> SegmentScan:
    try:
        return form.scan(data)
    except BrokenPlugin as error:
        raise BrokenPlugin(f"{path}: {error}") from error.__cause__


def _damage(form: OpenFormat, data: Buffer, entry: StoredMessage) -> str | None:
    """Return why the record does not match the index (frame, size, id or checksum), or None if it does."""
    record = data[entry.offset : entry.offset + entry.size]
    if len(record) != entry.size:
        return "size_mismatch"
    try:
        form.format.decode(entry.msg_id, record)
    except RecordError as error:
        return error.reason
    return None


@attrs.frozen
class SegmentCheck:
    """Result of the check of one segment against index and counts."""

    number: int
    path: Path
    segment: SegmentStats | None
    """None if only the index knows the segment."""
    entries: Sequence[StoredMessage]
    checked: Checked
    findings: Sequence[Finding] = ()

    @property
    def format(self) -> str:
        return self.segment.format if self.segment else "?"

    @property
    def counts(self) -> tuple[int, int]:
        """Live records and live bytes in the segment's row."""
        return (self.segment.live_count, self.segment.live_bytes) if self.segment else (0, 0)

    @property
    def counts_agree(self) -> bool:
        return self.counts == (len(self.entries), sum(entry.size for entry in self.entries))

    @property
    def unreachable(self) -> list[DamagedSpan]:
        """Live records that cannot be read."""
        return [span for span in self.checked.spans if span.msg_id is not None]

    def as_json(self) -> dict[str, Any]:
        scan = self.checked.scan or SegmentScan()
        return {
            "kind": "segment",
            "path": str(self.path),
            "format": self.format,
            "size": self.checked.size,
            "found": self.checked.scan is not None,
            "header": scan.header,
            "records": len(scan.records),
            "holes": len(scan.hole_offsets),
            "duplicates": len(scan.duplicates),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
            "live_count": self.counts[0],
            "live_bytes": self.counts[1],
            "counts_agree": self.counts_agree,
            "verified": len(self.entries) - len(self.unreachable),
            "unreachable": [
                {"id": span.msg_id, "offset": span.offset, "size": span.size, "reason": span.reason}
                for span in self.unreachable
            ],
            "findings": [finding.as_json() for finding in self.findings],
            "ok": self.checked.scan is not None and not self.checked.spans and not self.findings,
        }


def check_segments(target: StoreTarget, store: Store, throttle: Throttle, behind: int = -1) -> Iterator[SegmentCheck]:
    """Yield one check per segment above the number ``behind``, in number order. Keeps the records of one segment in memory.

    If a writer has the store open, its counts change meanwhile and are not compared.
    """
    formats = target.backends().formats
    is_live = store.stats().recovery.how == "live"
    entries = ((entry.number, 1, entry) for entry in store.entries())
    segments = ((segment.number, 0, segment) for segment in store.segments())
    merged: Iterator[tuple[int, int, Any]] = heapq.merge(segments, entries, key=lambda item: item[:2])
    with store.client() as client:
        checker = Checker(Files(), throttle, client.read)
        for number, group in groupby(merged, key=lambda item: item[0]):
            items = [item for _, _, item in group]
            if number <= behind:
                continue
            segment = items.pop(0) if isinstance(items[0], SegmentStats) else None
            if segment is None:
                path = target.path / str(number)
                yield SegmentCheck(number, path, None, items, Checked(checker.check_gone(path, items)))
                continue
            path = target.path / segment.file
            checked = checker.check(path, formats.by_name(segment.format), items)
            findings = () if is_live else tuple(find_inconsistencies(segment, checked.size, items))
            yield SegmentCheck(number, path, segment, items, checked, findings)


def find_inconsistencies(segment: SegmentStats, file_size: int, entries: Iterable[StoredMessage]) -> Iterator[Finding]:
    """Yield the contradictions of index, counts and segment. Reads no record.

    ``entries``: all index entries of the segment, by offset. ``file_size``: size of the file, not of the segment's row.
    """
    count = total = end = 0
    previous: StoredMessage | None = None
    for entry in entries:
        place = entry.msg_id.hex(), entry.offset, entry.size
        if entry.references < 1:
            yield Finding(segment.file, "no_reference", f"{entry.references} references", *place)
        if entry.offset < segment.header_bytes or entry.offset + entry.size > file_size:
            inside = f"the segment's records are between {segment.header_bytes} and {file_size}"
            yield Finding(segment.file, "outside_the_segment", inside, *place)
        if previous is not None and entry.offset == previous.offset:
            yield Finding(segment.file, "same_place", f"so is {previous.msg_id.hex()}", *place)
        elif previous is not None and entry.offset < end:
            yield Finding(segment.file, "overlap", f"the record before it, {previous.msg_id.hex()}, ends at {end}", *place)
        count, total = count + 1, total + entry.size
        previous, end = entry, max(end, entry.offset + entry.size)
    for what, noun, row, index in (
        ("live_count", "live records", segment.live_count, count),
        ("live_bytes", "live bytes", segment.live_bytes, total),
    ):
        if row != index:
            yield Finding(segment.file, what, f"the segment's row counts {row} {noun}, the index has {index}")
