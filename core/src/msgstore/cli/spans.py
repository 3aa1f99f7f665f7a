"""What stands where in a segment: spans that follow one another, from a scan and from what an index says is alive."""

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
from msgstore.engine.open.clean_marker import SAVED_COUNTS
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import SegmentReport, damaged_spans

KINDS = {
    "header": "header",
    "live": "live",
    "record": "record (live or dead: no index says)",
    "dead": "dead",
    "hole": "hole",
    "other": "the format's own",
    "torn": "torn",
    "damaged": "damaged",
}
"""What bytes can be, and in words."""

_TRUSTED = {"trust", "tail", "taken over"}


@attrs.frozen
class LiveReferences:
    """What an index says of a directory's segments, by the name of the file."""

    references: Mapping[str, Mapping[int, int]]
    """Of each live record of a segment, by its offset."""
    quarantined: frozenset[str]
    """Those that are never collected: damage was found in them."""


class Span(NamedTuple):
    """Bytes of one kind: of a record all of it, else a run. A tuple: there may be a million."""

    offset: int
    size: int
    kind: str
    msg_id: bytes = b""
    type_byte: int = 0
    references: int = 0
    """Of a live record."""
    why: str = ""
    """Of damage, and of a record that is dead because it is a later copy."""


def live_records(directory: Path, catalogue: Catalogue, refcounts: list[tuple[bytes, int]] | None = None) -> LiveReferences | None:
    """What a store's index says, if it says anything that can be trusted; None if not."""
    if refcounts is None and not any((directory / name).exists() for name in (SETTINGS, SAVED_COUNTS)):
        return None
    try:
        with bare_store(directory, catalogue).open("r", refcounts, live="never") as store:
            recovery = store.stats().recovery
            if recovery.how in _TRUSTED or recovery.counts in ("given", "msg_store_index.ets"):
                found = store.segments()
                names = {segment.number: segment.file for segment in found}
                by_number = groupby(store.entries(), key=lambda entry: entry.number)
                return LiveReferences(
                    {names.get(number, ""): {e.offset: e.references for e in entries} for number, entries in by_number},
                    frozenset(segment.file for segment in found if segment.quarantined),
                )
    except MsgStoreError as error:
        output.note(f"{error} Drawn without it.")
    return None


def spans(report: SegmentReport, live: LiveReferences | None) -> Iterator[Span]:
    """Every byte of a segment once, in order. What the scan does not account for is the format's own."""
    at = 0
    for span in heapq.merge(*_parts(report, live)):
        if span.offset > at:
            yield Span(at, span.offset - at, "other")
        if span.offset < at:  # no format has records inside one another; a plugin may be wrong
            span = span._replace(offset=at, size=span.offset + span.size - at)
        if span.size > 0:
            yield span
            at = span.offset + span.size
    if at < report.size:
        yield Span(at, report.size - at, "other")


def _parts(report: SegmentReport, live: LiveReferences | None) -> Iterator[Iterator[Span]]:
    """By offset each. Records are not made before they are asked for."""
    scan = report.scan
    references = None if live is None else live.references.get(report.path.name, {})
    if scan.header == "ok":
        yield iter([Span(0, len(report.format.format.header), "header")])
    spots = [Span(s.offset, s.size, "torn" if s.reason == "torn" else "damaged", why=s.reason) for s in damaged_spans(report)]
    yield iter(sorted(spots))
    yield (Span(offset, size, "hole") for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True))
    yield _records(scan.records, references, "record", "")
    yield _records(scan.duplicates, references, "dead", "a later copy of a record above")


def _records(columns: Columns, references: Mapping[int, int] | None, unknown: str, why: str) -> Iterator[Span]:
    """``unknown``: what a record is if no index says."""
    for msg_id, offset, size, type_byte in columns.rows():
        if references is None:
            yield Span(offset, size, unknown, msg_id, type_byte, why=why)
        elif offset in references:
            yield Span(offset, size, "live", msg_id, type_byte, references[offset])
        else:
            yield Span(offset, size, "dead", msg_id, type_byte, why=why)
