"""What stands in one segment, byte by byte, and what is wrong with it: the relations ``segments`` and ``damage``, as values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from msgstore.contract import Buffer, Columns, Damage
from msgstore.files import Files
from msgstore.jobs.inputs import SegmentInput, open_input
from msgstore.scan import OpenFormat, SegmentReport, damaged_spans
from msgstore.scan.fields import values_at

UNREADABLE = "unreadable"
"""The state of a segment that the operating system or a plugin does not let us read, and how its reason begins."""


class UnreadableSegmentError(Exception):
    """Its text is the reason of the one damaged span that the segment then is."""


@attrs.frozen
class SegmentSummary:
    """Bytes, but for ``records``: ``header + live + dead + holes + duplicates + damaged + other == size``."""

    store: str
    file: str
    format: str
    size: int
    header: int = 0
    records: int = 0
    """Whole, undamaged records, later copies of an id not counted."""
    live: int = 0
    """Of such records. Which are dead only reference counts tell: without any, all are taken to be alive."""
    dead: int = 0
    holes: int = 0
    duplicates: int = 0
    """Of later copies of an id in the same segment."""
    damaged: int = 0
    other: int = 0
    """Of what the format keeps for itself."""
    state: str = UNREADABLE
    """How reading ended: ``clean``, ``torn``, ``corrupt``, or ``unreadable``."""


@attrs.frozen
class SegmentFindings:
    summary: SegmentSummary
    damage: tuple[Damage, ...]


@attrs.frozen
class SegmentRange:
    """Records of a segment from one place to another, as it was when somebody looked at it."""

    begin: int
    """Where a record begins, or 0."""
    end: int
    crc32: int
    """Of everything in front of ``end``: who has changed one of these bytes may have moved records."""

    def is_of(self, data: Buffer) -> bool:
        return len(data) >= self.end and checksum(data, self.end) == self.crc32


def checksum(data: Buffer, end: int) -> int:
    """CRC-32 of the bytes in front of ``end``."""
    with memoryview(data) as view, view[:end] as stretch:
        return zlib.crc32(stretch)


@contextmanager
def opening(found: SegmentInput) -> Iterator[tuple[OpenFormat, Buffer]]:
    """A segment's format and bytes. Raises PluginError if a plugin is missing in this process.

    Whatever else goes wrong, in here and in what the caller has the plugins do, becomes an UnreadableSegmentError: no single
    segment fails a job.
    """
    form = open_input(found)
    try:
        with Files().view(Path(found.path)) as data:
            yield form, data
    except UnreadableSegmentError:
        raise
    except OSError as error:
        raise UnreadableSegmentError(f"{UNREADABLE}: {error.strerror or error}") from error
    except Exception as error:
        raise UnreadableSegmentError(f"{UNREADABLE}: {type(error).__name__}: {error}") from error


@contextmanager
def reading(found: SegmentInput, stretch: SegmentRange | None = None) -> Iterator[tuple[OpenFormat, Buffer, SegmentReport]]:
    """The same, with the scan of it, or of what comes from the beginning of ``stretch`` on. A segment that has been changed
    within that cannot be read."""
    with opening(found) as (form, data):
        if stretch is not None and not stretch.is_of(data):
            raise ValueError("it was changed after it was looked at")
        scan = form.scan(data, start=stretch.begin if stretch else 0)
        yield form, data, SegmentReport(Path(found.path), form, len(data), scan)


def _try_plugins(form: OpenFormat, data: Buffer, records: Columns) -> None:
    """Whatever the reading of these records would have plugins do that may fail: where bodies have a constant frame, that is
    asked for once."""
    values_at(form, data, records)
    kinds = set(records.types)
    rows = range(len(records)) if kinds - form.framed else map(records.types.index, kinds)
    for row in rows:
        offset, size = records.offsets[row], records.sizes[row]
        begin, end = form.format.body_span(data, offset, size)
        if not offset <= begin <= end <= offset + size:
            raise ValueError(f"at offset {offset}: the body is said to be outside of its record")


def judge(found: SegmentInput, counts: Mapping[bytes, int] | None = None) -> SegmentFindings:
    """Read a segment. With ``counts``, references by id, records of an id that has none are dead."""
    store, file = found.store, Path(found.path).name
    try:
        with reading(found) as (form, data, report):
            _try_plugins(form, data, report.scan.records)
            damage = damaged_spans(report)
            return SegmentFindings(_summary(store, file, form, report, damage, counts), tuple(damage))
    except UnreadableSegmentError as error:
        summary = SegmentSummary(store, file, found.format, found.size, damaged=found.size)
        return SegmentFindings(summary, (Damage(0, found.size, str(error)),))


def _summary(
    store: str, file: str, form: OpenFormat, report: SegmentReport, damage: list[Damage], counts: Mapping[bytes, int] | None
) -> SegmentSummary:
    scan = report.scan
    header = len(form.format.header)
    whole_header = scan.header in (None, "ok") and scan.end.offset >= header
    everything = sum(scan.records.sizes)
    dead = 0 if counts is None else _unreferenced(scan.records, counts)
    summary = SegmentSummary(
        store,
        file,
        form.name,
        report.size,
        header=header if whole_header else 0,
        records=len(scan.records),
        live=everything - dead,
        dead=dead,
        holes=sum(scan.hole_sizes),
        duplicates=sum(scan.duplicates.sizes),
        damaged=sum(spot.size for spot in damage),
        state=scan.end.state,
    )
    known = summary.header + everything + summary.holes + summary.duplicates + summary.damaged
    if known > report.size:
        raise ValueError(f"the scan finds {known} bytes in {report.size}")
    return attrs.evolve(summary, other=report.size - known)


def _unreferenced(records: Columns, counts: Mapping[bytes, int]) -> int:
    return sum(size for msg_id, size in zip(records.id_list(), records.sizes, strict=True) if counts.get(msg_id, 0) <= 0)
