"""Check of one segment: its bytes by kind, its damaged spans, and its intact records, also those after or inside damage.

Also: search for the new records of segments that are being written (:func:`poll`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from msgstore.contract import BrokenPlugin, Buffer, Columns, Damage, SegmentScan
from msgstore.engine.open.recovery_plan import CHAIN
from msgstore.files import Files, SegmentMap
from msgstore.jobs.inputs import SegmentInput, open_input
from msgstore.jobs.reading.chains import Judge, SegmentSpan, read_spans
from msgstore.jobs.reports import ScannedSegment
from msgstore.plugins.blame import PLUGIN_FAILED, blame
from msgstore.plugins.loader import comes_from_outside
from msgstore.scan import OpenFormat, SegmentReport, damaged_spans
from msgstore.scan.formats import scan_checked
from msgstore.scan.segment import ANOTHER_BODY, conflicting, with_conflicts

_ZEROS = memoryview(bytes(2**20))
UNREADABLE = "unreadable"
"""State of a segment that the operating system or a plugin cannot read, and first word of the reason."""


class UnreadableSegmentError(Exception):
    """Raised for a segment that cannot be read. Its text is the reason of the damaged span that covers the segment."""


@attrs.frozen
class SegmentRange:
    """Records of a segment between two offsets, in one version of the file."""

    begin: int
    """Offset of a record, or 0."""
    end: int
    crc32: int
    """CRC-32 of the bytes before ``end``. If they have changed, records may have moved."""

    def is_of(self, data: Buffer) -> bool:
        """Return True if ``data`` is the same version of the file."""
        return len(data) >= self.end and checksum(data, self.end) == self.crc32


def checksum(data: Buffer, end: int) -> int:
    """Return the CRC-32 of the bytes before ``end``. The holes of a sparse file are not read: they are zeros."""
    crc = at = 0
    with memoryview(data) as view:
        for begin, stop in data.stored_parts(0) if isinstance(data, SegmentMap) else [(0, len(data))]:
            if begin >= end:
                break
            crc = _add_zeros(crc, begin - at)
            at = min(stop, end)
            with view[begin:at] as stretch:
                crc = zlib.crc32(stretch, crc)
    return _add_zeros(crc, end - at)


def _add_zeros(crc: int, count: int) -> int:
    """Return the CRC-32 of what has ``crc``, followed by ``count`` zeros."""
    for left in range(count, 0, -len(_ZEROS)):
        crc = zlib.crc32(_ZEROS[:left], crc)
    return crc


@contextmanager
def opening(found: SegmentInput) -> Iterator[tuple[OpenFormat, Buffer]]:
    """Yield the format and the bytes of a segment. Raises PluginError if a plugin is missing in this process.

    Any other exception, also one of the block, becomes UnreadableSegmentError: no single segment fails a job.
    """
    form = open_input(found)
    try:
        with Files().view(Path(found.path)) as data:
            yield form, data
    except UnreadableSegmentError:
        raise
    except OSError as error:
        raise UnreadableSegmentError(f"{UNREADABLE}: {error.strerror or error}") from error
    except (Exception, SystemExit) as error:
        if comes_from_outside(error):
            raise
        broken = error if isinstance(error, BrokenPlugin) else blame(error)
        reason = f"{type(error).__name__}: {error}" if broken is None else f"{PLUGIN_FAILED}: {broken}"
        raise UnreadableSegmentError(f"{UNREADABLE}: {reason}") from error


# -- as a scan reports it -----------------------------------------------------------------------------------------------------


@attrs.frozen
class SegmentFindings:
    """Scan result of one segment. Picklable."""

    segment: ScannedSegment
    damage: tuple[Damage, ...]
    records: Columns = attrs.field(factory=Columns)
    """Its records, if they were asked for: 33 bytes each."""
    is_gone: bool = False
    """True if it was deleted since it was listed, as a collector does."""


def check_segment(found: SegmentInput, *, with_records: bool = False) -> SegmentFindings:
    """Scan a segment. One that cannot be read is one damaged span. Raises PluginError if this process lacks a plugin."""
    try:
        with opening(found) as (form, data):
            scan = with_conflicts(Path(found.path), form, data, form.scan(data))
            report = SegmentReport(Path(found.path), form, len(data), scan)
            damage, header = tuple(damaged_spans(report)), len(form.format.header)
            segment = ScannedSegment(
                found.path,
                form.name,
                len(data),
                state="corrupt" if damage and scan.end.state == "clean" else scan.end.state,
                header=header if scan.header in (None, "ok") and scan.end.offset >= header else 0,
                records=len(scan.records),
                record_bytes=sum(scan.records.sizes),
                types=report.count_types(),
                holes=len(scan.hole_offsets),
                hole_bytes=sum(scan.hole_sizes),
                duplicates=len(scan.duplicates),
                duplicate_bytes=sum(scan.duplicates.sizes),
                damaged=sum(span.size for span in damage),
                quarantined=is_quarantined(report),
            )
            return SegmentFindings(segment, damage, scan.records if with_records else Columns())
    except UnreadableSegmentError as error:
        segment = ScannedSegment(found.path, found.format, found.size, state=UNREADABLE, damaged=found.size, quarantined=True)
        is_gone = isinstance(error.__cause__, FileNotFoundError)
        return SegmentFindings(segment, (Damage(0, found.size, str(error)),), is_gone=is_gone)


def is_quarantined(report: SegmentReport) -> bool:
    """Return True if an opening would quarantine the segment. A torn end is damage only if records follow it."""
    scan = report.scan
    is_damaged = any(span.reason != ANOTHER_BODY for span in scan.damage)
    if scan.end.state != "torn":
        return scan.end.state == "corrupt" or is_damaged
    with Files().view(report.path) as data:
        return is_damaged or report.format.format.find_chain(data, scan.end.offset + 1, CHAIN) is not None


# -- also after and inside damage --------------------------------------------------------------------------------------------


@attrs.frozen
class IntactRecords:
    """Records of a segment that pass all checks, with every copy of an id. Picklable: 33 bytes per record."""

    size: int
    header: int = 0
    holes: int = 0
    damage: tuple[Damage, ...] = ()
    records: Columns = attrs.field(factory=Columns)
    """By offset. The types are unset."""
    recovered: bytes = b""
    """1 for each record that was found after or inside a damaged span, else 0."""
    live: bytes = b""
    """1 for each record that the index of its store points to, else 0; empty if that is not known."""
    crc32: int = 0
    """CRC-32 of the segment, if a job reads it a second time."""
    digests: bytes = b""
    """Hashes of the bodies, if a job compares them."""


def intact_records(path: Path, form: OpenFormat, data: Buffer, check_segment: Judge | None = None) -> IntactRecords:
    """Return the records that pass the checks of the format, and the ``check_segment`` if there is one. ``path``: the segment,
    whose directory says if copies of an id must have one body."""
    scan = scan_checked(form.format, data)
    is_sound = scan.end.state == "clean" and scan.header in (None, "ok") and not (scan.damage or len(scan.duplicates))
    if is_sound and check_segment is None:
        header = min(len(form.format.header), len(data))
        return IntactRecords(len(data), header, sum(scan.hole_sizes), (), scan.records, bytes(len(scan.records)))
    spans = read_spans(form.format, data, check_segment, scan)
    conflicts = _conflicts(path, form, data, spans)
    records, recovered, damage, holes = Columns(), bytearray(), [], 0
    for span in spans:
        reason = ANOTHER_BODY if span.offset in conflicts else span.reason
        if reason:
            damage.append(Damage(span.offset, span.size, reason))
        elif span.id is not None:
            records.add(span.id, span.offset, span.size)
            recovered.append(span.recovered)
        else:
            holes += span.size
    header = spans[0].offset if spans else len(data)
    return IntactRecords(len(data), header, holes, tuple(damage), records, bytes(recovered))


def _conflicts(path: Path, form: OpenFormat, data: Buffer, spans: Iterable[SegmentSpan]) -> set[int]:
    """Return the offsets of later copies of an id with another body, of the records that were found intact."""
    found = [span for span in spans if span.id is not None]
    if len({span.id for span in found}) == len(found):
        return set()
    scan = SegmentScan()
    for span in found:
        scan.records.add(span.id or b"", span.offset, span.size)
    scan.separate_copies()
    return conflicting(path, form, data, scan.records, scan.duplicates)


def read_intact(
    item: SegmentInput, read: Callable[[Path, OpenFormat, Buffer], IntactRecords] = intact_records
) -> IntactRecords:
    """Read a segment to its end. A segment that cannot be read is one damaged span. Raises PluginError."""
    try:
        with opening(item) as (form, data):
            return read(Path(item.path), form, data)
    except UnreadableSegmentError as error:
        return IntactRecords(item.size, damage=(Damage(0, item.size, str(error)),))


# -- of a store that is being written -----------------------------------------------------------------------------------------


_SETTLED = 2 * 10**9
"""Age of a modification time, in nanoseconds, from which a later change gets another time on any file system."""
UNSETTLED = 0
"""Modification time that equals none: the file is read again."""


@attrs.frozen
class TailPosition(SegmentRange):
    """Progress in one file: the last span that was read, and the state of the file before."""

    size: int
    mtime_ns: int


def poll(
    inputs: Iterable[SegmentInput], known: Mapping[str, TailPosition], seen: dict[str, tuple[int, int]]
) -> Iterator[tuple[SegmentInput, TailPosition]]:
    """Yield each segment with records after its position in ``known``, and the new position. Oldest of a store first.

    A position is an offset in one version of a file, which the checksum of all bytes before it identifies. If these bytes have
    changed, records may have moved, and the file is read again from its start. So each live record is read at least once, and
    again if a collector moves it. A record that is removed before it was read is not read. Bytes after the last whole record
    are left for the next poll, because a write may be in progress. A file that has not changed is not read: ``seen``
    remembers size and time of those in which there was nothing new, from one poll to the next.
    """
    for found in reversed(list(inputs)):  # by rank: the highest number is the first
        with suppress(OSError):  # deleted since it was listed: its live records are elsewhere
            if position := _next_position(found, known.get(found.path), seen):
                yield found, position


def _next_position(found: SegmentInput, before: TailPosition | None, seen: dict[str, tuple[int, int]]) -> TailPosition | None:
    status = Path(found.path).stat()
    stamp = status.st_size, status.st_mtime_ns
    if time.time_ns() - status.st_mtime_ns < _SETTLED:
        stamp = status.st_size, UNSETTLED
    elif stamp == seen.get(found.path) or (before is not None and stamp == (before.size, before.mtime_ns)):
        return None
    with Files().view(Path(found.path)) as data:
        begin = before.end if before is not None and before.is_of(data) else 0
        try:
            end = open_input(found).format.scan(data, start=begin).end.offset
        except Exception:  # the reader of the records fails too, and reports it
            end = len(data)
        if end > begin:
            return TailPosition(begin, end, checksum(data, end), *stamp)
    seen[found.path] = stamp
    return None
