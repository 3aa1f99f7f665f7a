"""Spans of segments: consecutive byte ranges, from a scan and the live records of an index; and the data of ``map --html``.

If there are more spans than a page can hold, short neighbours are merged.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import attrs

import msgstore
from msgstore.cli import output
from msgstore.cli.options import target_of
from msgstore.contract import Columns, MsgStoreError
from msgstore.directory import has_settings
from msgstore.engine.segment.segment import Segment
from msgstore.engine.state.clean_shutdown import SAVED_COUNTS
from msgstore.jobs.policy_forecast import forecast, make_policy_input
from msgstore.jobs.reading.segment_check import is_quarantined
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, SegmentReport, damaged_spans

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
MAX_LISTED_SPANS = 200
"""Damaged spans per directory that the page lists with their reasons."""
MAX_SPANS = 100_000
"""Approximate number of spans that a page draws one by one: about 8 MB, and a second in a browser."""
_TRUSTED = {"trust", "tail", "taken over"}
"""Kinds of recovery whose index knows the live records."""


@attrs.frozen
class LiveReferences:
    """Live records of the segments of a directory, as the index has them."""

    references: Mapping[str, Mapping[int, int]]
    """File name to offset to reference count, of each live record."""
    quarantined: frozenset[str]
    """Names of damaged segments, which are never collected."""


def live_records(
    directory: Path, catalogue: Catalogue, refcounts: list[tuple[bytes, int]] | None = None
) -> LiveReferences | None:
    """Return the live records of a store, or None if no trustworthy index or counts exist."""
    if refcounts is None and not (has_settings(directory) or (directory / SAVED_COUNTS).exists()):
        return None
    try:
        with target_of(directory, catalogue).open("r", refcounts, live="never") as store:
            recovery, found = store.stats().recovery, store.segments()
            if recovery.how not in _TRUSTED and recovery.counts not in ("given", "msg_store_index.ets"):
                return None
            names = {segment.number: segment.file for segment in found}
            by_number = groupby(store.entries(), key=lambda entry: entry.number)
            references = {names.get(number, ""): {e.offset: e.references for e in entries} for number, entries in by_number}
            return LiveReferences(references, frozenset(segment.file for segment in found if segment.quarantined))
    except MsgStoreError as error:
        output.note(f"Drawn without live records. {error}")
        return None


class Span(NamedTuple):
    """Bytes of one kind: one whole record, or a run. A tuple, because there may be a million."""

    offset: int
    size: int
    kind: str
    msg_id: bytes = b""
    type_name: str = ""
    """Record type of a typed format, with its byte."""
    references: int = 0
    """Reference count of a live record."""
    why: str = ""
    """Reason of damage, or why a record is dead although its id is live: it is a later copy."""


def spans(report: SegmentReport, live: LiveReferences | None) -> Iterator[Span]:
    """Yield every byte of a segment once, in order. Bytes that the scan does not list belong to the format."""
    scan = report.scan
    references = None if live is None else live.references.get(report.path.name, {})
    header = [Span(0, len(report.format.format.header), "header")] if scan.header == "ok" else []
    damaged = (Span(s.offset, s.size, "torn" if s.reason == "torn" else "damaged", why=s.reason) for s in damaged_spans(report))
    holes = (Span(offset, size, "hole") for offset, size in zip(scan.hole_offsets, scan.hole_sizes, strict=True))
    types: dict[int, str] = {}
    if report.format.typed:
        names, bytes_found = report.format.type_names, {*scan.records.types, *scan.duplicates.types}
        types = {byte: f"{names[byte]} (type {byte})" if byte in names else f"type {byte}" for byte in bytes_found}
    records = _records(scan.records, references, types, "record", "")
    copies = _records(scan.duplicates, references, types, "dead", "a later copy of a record above")
    at = 0
    for span in heapq.merge(header, sorted(damaged), holes, records, copies):
        if span.offset > at:
            yield Span(at, span.offset - at, "other")
        if span.offset < at:  # overlapping records are a plugin's error
            span = span._replace(offset=at, size=span.offset + span.size - at)
        if span.size > 0:
            yield span
            at = span.offset + span.size
    if at < report.size:
        yield Span(at, report.size - at, "other")


def _records(
    columns: Columns, references: Mapping[int, int] | None, types: Mapping[int, str], unknown: str, why: str
) -> Iterator[Span]:
    """Yield the spans of records. ``unknown``: kind of a record without an index."""
    for msg_id, offset, size, type_byte in columns.rows():
        kind = unknown if references is None else "live" if offset in references else "dead"
        type_name, count = types.get(type_byte, ""), (references or {}).get(offset, 0)
        yield Span(offset, size, kind, msg_id, type_name, count, "" if kind == "live" else why)


# -- data of the page ---------------------------------------------------------------------------------------------------------


class Merged(NamedTuple):
    """Neighbouring spans that are too many to show one by one."""

    size: int
    kinds: dict[str, tuple[int, int]]
    """Number and bytes of the spans of each kind."""


Piece = Span | Merged


def totals(pieces: Iterable[Piece]) -> dict[str, tuple[int, int]]:
    """Return the number of spans and the bytes of each kind."""
    found: dict[str, tuple[int, int]] = {}
    for piece in pieces:
        kinds = piece.kinds if isinstance(piece, Merged) else {piece.kind: (1, piece.size)}
        for kind, (number, size) in kinds.items():
            before = found.get(kind, (0, 0))
            found[kind] = before[0] + number, before[1] + size
    return found


def merge_short(pieces: Iterable[Piece], grain: int) -> list[Piece]:
    """Merge runs of pieces shorter than ``grain`` bytes until each run has that size. Together the result has the same bytes.

    Returns at most 3 pieces per ``grain`` bytes, plus one. A short piece without a short neighbour is unchanged.
    """
    runs: list[list[Piece]] = [[]]
    size = 0  # of the last run
    for piece in pieces:
        if runs[-1] and (piece.size >= grain or size >= grain):
            runs.append([])
            size = 0
        runs[-1].append(piece)
        size += piece.size
    return [run[0] if len(run) == 1 else Merged(sum(piece.size for piece in run), totals(run)) for run in runs if run]


class PageData:
    """Collects the objects of the page segment by segment. Keeps no more spans than a page can show."""

    def __init__(self, catalogue: Catalogue, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: total size of all segments that will be added. They decide the resolution, the same for all segments,
        once there are more than ``limit`` spans."""
        self._catalogue = catalogue
        self._limit = limit
        self._coarse = max(1, -(-3 * all_bytes // limit))
        self._grain = 0
        """Bytes below which neighbours are merged; 0 while none are."""
        self._stores: dict[Path, dict[str, Any]] = {}
        """Object of each directory. Its segments have pieces in place of their rows."""
        self._segments: dict[Path, list[Segment]] = {}
        """Segments of each directory, for the policies."""

    def add(self, report: SegmentReport, live: LiveReferences | None) -> None:
        """Add one segment. Segments of one directory must be added in number order."""
        directory, name = report.path.parent, report.path.name
        quarantined = (live is not None and name in live.quarantined) or is_quarantined(report)
        pieces: list[Piece] = list(spans(report, live))
        found = totals(pieces)
        live_count, live_bytes = found.get("live", found.get("record", (0, 0)))  # an index knows all or none
        segment = Segment(
            -1, report.path, report.format, report.size, live_count, live_bytes,
            appendable=not (report.is_damaged or quarantined), quarantined=quarantined, torn=report.scan.end.state == "torn",
        )  # fmt: skip
        self._segments.setdefault(directory, []).append(segment)
        empty = {"path": str(directory), "live_known": live is not None, "segments": [], "damage": []}
        store = self._stores.setdefault(directory, empty)
        store["damage"] += sorted((name, span.offset, span.size, span.reason) for span in damaged_spans(report) if span.size)
        shown = {kind: found[kind] for kind in KINDS if kind in found}
        row: dict[str, Any] = {"file": name, "size": report.size, "quarantined": quarantined, "totals": shown, "pieces": pieces}
        store["segments"].append(row)
        changed = [row]
        if not self._grain:
            changed = [one for store in self._stores.values() for one in store["segments"]]
            if sum(len(one["pieces"]) for one in changed) > self._limit:
                self._grain = self._coarse
        for one in changed if self._grain else ():
            one["pieces"] = merge_short(one["pieces"], self._grain)

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the data of the page. ``now``: time for the policies, in seconds since the epoch."""
        return {
            "made": datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": msgstore.__version__,
            "kinds": {kind: meaning for kind, (meaning, *_) in KINDS.items()},
            "grain": self._grain,
            "stores": [self._store(directory, store, now) for directory, store in self._stores.items()],
        }

    def _store(self, directory: Path, store: Mapping[str, Any], now: float) -> dict[str, Any]:
        segments = [one | {"pieces": [_as_row(piece) for piece in one["pieces"]]} for one in store["segments"]]
        damage = {"damage": store["damage"][:MAX_LISTED_SPANS], "damage_count": len(store["damage"])}
        shown = {**store, "segments": segments, **damage, "unasked": "", "plans": []}
        try:
            formats = FormatSet(self._catalogue)
            policy_input = make_policy_input(directory, self._catalogue, formats, self._segments[directory])
        except MsgStoreError as error:
            return shown | {"unasked": str(error)}
        plans = [attrs.asdict(plan) for plan in forecast(self._catalogue, policy_input, now)]
        return shown | {"plans": plans, "size_limit": policy_input.size_limit, "not_shown": policy_input.not_shown}


def _as_row(piece: Piece) -> list[Any]:
    """Return [size, kind, why, id, type, references] of a span, without empty members at the end, or [size, number and bytes of
    each kind]."""
    if isinstance(piece, Merged):
        return list(piece)
    row = [piece.size, piece.kind, piece.why]
    if piece.msg_id:
        row += [piece.msg_id.hex(), piece.type_name, piece.references]
    while not row[-1]:
        row.pop()
    return row
