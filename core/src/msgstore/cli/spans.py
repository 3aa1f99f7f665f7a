"""Spans of a segment: consecutive byte ranges, from a scan and the live records of an index."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import attrs

from msgstore.cli import output
from msgstore.cli.stores import bare_store
from msgstore.contract import Columns, MsgStoreError
from msgstore.directory import SETTINGS
from msgstore.engine.open.clean_shutdown import SAVED_COUNTS
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import SegmentReport, damaged_spans

KINDS = {
    "header": ("header", "H", "H", "dim"),
    "live": ("live", "█", "#", "green"),
    "record": ("record (live or dead: no index says)", "▓", "=", "cyan"),
    "dead": ("dead", "▒", "-", "yellow"),
    "hole": ("hole", "·", ".", "bright_black"),
    "other": ("the format's own", "≡", "o", "dim"),
    "torn": ("torn", "~", "~", "magenta"),
    "damaged": ("damaged", "X", "X", "bold red"),
}
"""Kind of bytes to its description, glyph, ASCII glyph and style. Kinds differ also without colour, and in ASCII."""

_TRUSTED = {"trust", "tail", "taken over"}
"""Kinds of recovery whose index knows the live records."""


@attrs.frozen
class LiveReferences:
    """Live records of the segments of a directory, as the index has them."""

    references: Mapping[str, Mapping[int, int]]
    """File name to offset to reference count, of each live record."""
    quarantined: frozenset[str]
    """Names of damaged segments, which are never collected."""


class Span(NamedTuple):
    """Bytes of one kind: one whole record, or a run. A tuple, because there may be a million."""

    offset: int
    size: int
    kind: str
    msg_id: bytes = b""
    type_byte: int = 0
    references: int = 0
    """Reference count of a live record."""
    why: str = ""
    """Reason of damage, or why a record is dead although its id is live: it is a later copy."""


def live_records(
    directory: Path, catalogue: Catalogue, refcounts: list[tuple[bytes, int]] | None = None
) -> LiveReferences | None:
    """Return the live records of a store, or None if no trustworthy index or counts exist."""
    if refcounts is None and not any((directory / name).exists() for name in (SETTINGS, SAVED_COUNTS)):
        return None
    try:
        with bare_store(directory, catalogue).open("r", refcounts, live="never") as store:
            recovery = store.stats().recovery
            if recovery.how not in _TRUSTED and recovery.counts not in ("given", "msg_store_index.ets"):
                return None
            found = store.segments()
            names = {segment.number: segment.file for segment in found}
            by_number = groupby(store.entries(), key=lambda entry: entry.number)
            references = {names.get(number, ""): {e.offset: e.references for e in entries} for number, entries in by_number}
            return LiveReferences(references, frozenset(segment.file for segment in found if segment.quarantined))
    except MsgStoreError as error:
        output.note(f"{error} Drawn without live records.")
        return None


def spans(report: SegmentReport, live: LiveReferences | None) -> Iterator[Span]:
    """Yield every byte of a segment once, in order. Bytes that the scan does not list belong to the format."""
    at = 0
    for span in heapq.merge(*_parts(report, live)):
        if span.offset > at:
            yield Span(at, span.offset - at, "other")
        if span.offset < at:  # overlapping records are a plugin's error
            span = span._replace(offset=at, size=span.offset + span.size - at)
        if span.size > 0:
            yield span
            at = span.offset + span.size
    if at < report.size:
        yield Span(at, report.size - at, "other")


def _parts(report: SegmentReport, live: LiveReferences | None) -> Iterator[Iterator[Span]]:
    """Yield iterators of spans, each ordered by offset. Records are created on demand."""
    scan = report.scan
    references = None if live is None else live.references.get(report.path.name, {})
    if scan.header == "ok":
        yield iter([Span(0, len(report.format.format.header), "header")])
    damaged = [Span(s.offset, s.size, "torn" if s.reason == "torn" else "damaged", why=s.reason) for s in damaged_spans(report)]
    yield iter(sorted(damaged))
    yield (Span(offset, size, "hole") for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True))
    yield _records(scan.records, references, "record", "")
    yield _records(scan.duplicates, references, "dead", "a later copy of a record above")


def _records(columns: Columns, references: Mapping[int, int] | None, unknown: str, why: str) -> Iterator[Span]:
    """Yield the spans of records. ``unknown``: kind of a record without an index."""
    for msg_id, offset, size, type_byte in columns.rows():
        if references is None:
            yield Span(offset, size, unknown, msg_id, type_byte, why=why)
        elif offset in references:
            yield Span(offset, size, "live", msg_id, type_byte, references[offset])
        else:
            yield Span(offset, size, "dead", msg_id, type_byte, why=why)
