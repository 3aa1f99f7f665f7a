"""Check of a store, segment by segment: every byte against the format, every live record against the index, and the counts.

Segments can be read at a limited rate. Bytes that the disk cannot read are damage, and the rest is checked.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from msgstore.cli.scrub_state import DamagedSpan, Finding
from msgstore.cli.stores import StoreTarget
from msgstore.contract import BrokenPlugin, Buffer, MessageNotFound, MsgStoreError, RecordError, SegmentScan, SegmentStats
from msgstore.engine.store import Store, StoredMessage
from msgstore.files import READ_WHOLE, Files
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
class Content:
    """Bytes of a segment."""

    data: Buffer | None
    """Unreadable bytes are zeros. None if the file has unreadable bytes and is too large for memory."""
    state: tuple[int, int]
    """(size, modification time) before the read."""
    unreadable: list[DamagedSpan]


@contextlib.contextmanager
def read_throttled(files: Files, throttle: Throttle, path: Path) -> Iterator[Content]:
    """Yield the content of the file. A file that is too large for memory is mapped after a throttled read."""
    fd = files.open_read(path)
    try:
        state = size, _ = files.size_and_mtime(fd)
        parts: list[bytes] = []
        unreadable: list[DamagedSpan] = []
        for offset in range(0, size, CHUNK):
            length = min(CHUNK, size - offset)
            try:
                part = files.pread(fd, length, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                unreadable.append(DamagedSpan(path.name, offset, length, "unreadable"))
                part = bytes(length)
            if size <= READ_WHOLE:
                parts.append(part)
            throttle.spend(length)
        if size <= READ_WHOLE:
            yield Content(b"".join(parts), state, unreadable)
        elif unreadable:  # access to the mapping there would kill the process
            yield Content(None, state, unreadable)
        else:
            with files.view(path) as data:
                yield Content(data, state, unreadable)
    finally:
        files.close(fd)


class Checked(NamedTuple):
    """Result of the check of one segment file."""

    spans: list[DamagedSpan]
    """By offset, at most one per offset."""
    bytes: int
    """Bytes read. More than the size if the file was read again."""
    size: int
    scan: SegmentScan | None
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
        damaged only if a client cannot read the message either.
        """
        read = size = 0
        spans: list[DamagedSpan] = []
        scan = None
        for _ in range(MAX_READS):
            try:
                with read_throttled(self._files, self._throttle, path) as content:
                    size = content.state[0]
                    read += size
                    spans, scan = self._check(path, form, content, entries)
            except FileNotFoundError:
                return Checked(self.check_gone(path, entries), read, 0, None)
            if not spans or self._files.list(path.parent).get(path.name) == content.state:
                break
        return Checked(spans, read, size, scan)

    def check_gone(self, path: Path, entries: Sequence[StoredMessage]) -> list[DamagedSpan]:
        """Return the lost live records of a missing segment."""
        lost = [entry for entry in entries if self._is_lost(entry)]
        return [DamagedSpan(path.name, entry.offset, entry.size, "segment_missing", entry.msg_id.hex()) for entry in lost]

    def _check(
        self, path: Path, form: OpenFormat, content: Content, entries: Sequence[StoredMessage]
    ) -> tuple[list[DamagedSpan], SegmentScan]:
        """Return one span per offset; that of a live record wins. Ignores what the format says about unreadable bytes, which
        are zeros here."""
        by_offset: dict[int, DamagedSpan] = {}
        scan = SegmentScan()
        if content.data is not None:
            scan = _scan(path, form, content.data)
            for span in self._check_bytes(path, form, content.data, scan, entries):
                is_unreadable = any(bad.offset <= span.offset < bad.offset + bad.size for bad in content.unreadable)
                if span.msg_id is not None or not is_unreadable:
                    by_offset[span.offset] = span
        return sorted([*content.unreadable, *by_offset.values()], key=lambda span: span.offset), scan

    def _check_bytes(
        self, path: Path, form: OpenFormat, data: Buffer, scan: SegmentScan, entries: Sequence[StoredMessage]
    ) -> Iterator[DamagedSpan]:
        """Yield the damage that the format finds, then the live records that do not match the index."""
        for span in damaged_spans(SegmentReport(path, form, len(data), scan)):
            yield DamagedSpan(path.name, span.offset, span.size, span.reason)
        scanned = {row[:3] for columns in (scan.records, scan.duplicates) for row in columns.rows()}
        for entry in entries:
            reason = _damage(form, data, entry)
            if reason is not None and self._is_lost(entry):
                yield DamagedSpan(path.name, entry.offset, entry.size, reason, entry.msg_id.hex())
            elif entry.offset < scan.end.offset and reason is None and (entry.msg_id, entry.offset, entry.size) not in scanned:
                yield DamagedSpan(path.name, entry.offset, entry.size, "not_in_scan", entry.msg_id.hex())

    def _is_lost(self, entry: StoredMessage) -> bool:
        """Return False if the message was moved or removed."""
        try:
            self._read(entry.msg_id)
        except MessageNotFound:
            return False
        except MsgStoreError:
            return True
        return False


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
    findings: Sequence[Finding]

    def as_json(self) -> dict[str, Any]:
        scan = self.checked.scan or SegmentScan()
        counts = (self.segment.live_count, self.segment.live_bytes) if self.segment else (0, 0)
        unreachable = [span for span in self.checked.spans if span.msg_id is not None]
        return {
            "kind": "segment",
            "path": str(self.path),
            "format": self.segment.format if self.segment else "?",
            "size": self.checked.size,
            "found": self.checked.scan is not None,
            "header": scan.header,
            "records": len(scan.records),
            "holes": len(scan.hole_offsets),
            "duplicates": len(scan.duplicates),
            "damage": [attrs.asdict(damage) for damage in scan.damage],
            "end": attrs.asdict(scan.end),
            "live_count": counts[0],
            "live_bytes": counts[1],
            "counts_agree": counts == (len(self.entries), sum(entry.size for entry in self.entries)),
            "verified": len(self.entries) - len(unreachable),
            "unreachable": [
                {"id": span.msg_id, "offset": span.offset, "size": span.size, "reason": span.reason} for span in unreachable
            ],
            "findings": [finding.as_json() for finding in self.findings],
            "ok": self.checked.scan is not None and not self.checked.spans and not self.findings,
        }


def check_segments(target: StoreTarget, store: Store, throttle: Throttle, behind: int = -1) -> Iterator[SegmentCheck]:
    """Yield one check per segment above the number ``behind``, in number order. Keeps the records of one segment in memory.

    If a writer has the store open, its counts change meanwhile and are not compared.
    """
    formats = target.backends(target.settings()).formats
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
                yield SegmentCheck(number, path, None, items, Checked(checker.check_gone(path, items), 0, 0, None), ())
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
    if segment.live_count != count:
        detail = f"the segment's row counts {segment.live_count} live records, the index has {count}"
        yield Finding(segment.file, "live_count", detail)
    if segment.live_bytes != total:
        detail = f"the segment's row counts {segment.live_bytes} live bytes, the index has {total}"
        yield Finding(segment.file, "live_bytes", detail)
