"""Data of the page of ``map --html``, as one JSON object. ``map_paint.js`` reads it."""

from __future__ import annotations

import base64
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.cli.downsampling import MAX_SPANS, Downsampler, MergedSpans, Piece
from msgstore.cli.inputs import Inputs
from msgstore.cli.spans import KINDS, LiveReferences, Span, spans
from msgstore.contract import MsgStoreError, RecordTypeDescriptor
from msgstore.engine.segment.segment import Segment
from msgstore.jobs.policy_forecast import as_segment, forecast, make_policy_input
from msgstore.scan import FormatSet, SegmentReport

MAX_LISTED_SPANS = 200
"""Damaged spans per directory that the page lists with their reasons."""
_CODES = {kind: chr(ord("a") + at) for at, kind in enumerate(KINDS)}
_MERGED = "+"


@attrs.define
class _MapRow:
    """One segment of the page, with the counts and bytes of each kind."""

    segment: Segment
    counts: Counter[str] = attrs.field(factory=Counter)
    sizes: Counter[str] = attrs.field(factory=Counter)


@attrs.define
class _DirectoryRows:
    """Segments and damaged spans of one directory."""

    path: Path
    live_known: bool
    rows: list[_MapRow] = attrs.field(factory=list)
    damaged_spans: list[tuple[str, int, int, str]] = attrs.field(factory=list)
    damaged_count: int = 0


class PageData:
    """Collects scan results segment by segment. Keeps no more spans than a page can show."""

    def __init__(self, inputs: Inputs, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: total size of all segments that will be added."""
        self._inputs = inputs
        self._downsampler = Downsampler(all_bytes, limit)
        self._directories: list[_DirectoryRows] = []
        self._words: dict[str, int] = {}

    def add(self, report: SegmentReport, live: LiveReferences | None) -> None:
        """Add one segment. Segments of one directory must be added one after another."""
        parent = report.path.parent
        if not self._directories or self._directories[-1].path != parent:
            self._directories.append(_DirectoryRows(parent, live is not None))
        directory = self._directories[-1]
        row = _MapRow(as_segment(report, live is not None and report.path.name in live.quarantined))
        directory.rows.append(row)
        self._downsampler.add(_counted(spans(report, live), row, directory))
        row.segment.live_count = row.counts["live"] + row.counts["record"]
        row.segment.live_bytes = row.sizes["live"] + row.sizes["record"]

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the data of the page. ``now``: time for the policies, in seconds since the epoch."""
        kept = iter(self._downsampler.kept)
        stores = [self._directory(directory, kept, now) for directory in self._directories]
        return {
            "made": datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": msgstore.__version__,
            "kinds": [[_CODES[kind], kind, meaning] for kind, meaning in KINDS.items()],
            "grain": self._downsampler.grain,
            "stores": stores,
            "words": list(self._words),
        }

    def _directory(self, directory: _DirectoryRows, kept: Iterator[list[Piece]], now: float) -> dict[str, Any]:
        names = _type_names(self._inputs.formats(directory.path))
        segments = [self._segment(row, next(kept), names) for row in directory.rows]
        return {
            "path": str(directory.path),
            "live_known": directory.live_known,
            "segments": segments,
            "spots": directory.damaged_spans,
            "spot_count": directory.damaged_count,
        } | self._plans(directory, now)

    def _segment(self, row: _MapRow, pieces: list[Piece], names: Mapping[tuple[str, int], str]) -> dict[str, Any]:
        form = row.segment.form
        records = [piece for piece in pieces if isinstance(piece, Span) and piece.msg_id]
        types = (names.get((form.name, r.type_byte), f"type {r.type_byte}") if form.typed else "" for r in records)
        return {
            "file": row.segment.path.name,
            "format": form.name,
            "size": row.segment.size,
            "quarantined": row.segment.quarantined,
            "totals": {_CODES[kind]: [row.counts[kind], row.sizes[kind]] for kind in row.counts},
            "kinds": "".join(_CODES[piece.kind] if isinstance(piece, Span) else _MERGED for piece in pieces),
            "sizes": [piece.size for piece in pieces],
            "ids": base64.b64encode(b"".join(record.msg_id for record in records)).decode(),
            "types": _runs(map(self._word, types)),
            "references": _runs(record.references for record in records),
            "whys": [[at, self._word(p.why)] for at, p in enumerate(pieces) if isinstance(p, Span) and p.why],
            "blocks": [
                [[_CODES[kind], piece.counts[kind], piece.sizes[kind]] for kind in piece.counts]
                for piece in pieces
                if isinstance(piece, MergedSpans)
            ],
        }

    def _word(self, text: str) -> int:
        """Return the index of a text in the shared list, so that repeated texts are stored once."""
        return self._words.setdefault(text, len(self._words))

    def _plans(self, directory: _DirectoryRows, now: float) -> dict[str, Any]:
        """Return the forecasts of the policies, or why none was made."""
        catalogue, formats = self._inputs.catalogue, self._inputs.formats(directory.path)
        try:
            policy_input = make_policy_input(directory.path, catalogue, formats, [row.segment for row in directory.rows])
        except MsgStoreError as error:
            return {"unasked": str(error), "plans": []}
        return {
            "unasked": "",
            "plans": [attrs.asdict(plan) for plan in forecast(catalogue, policy_input, now)],
            "size_limit": policy_input.size_limit,
            "current": policy_input.current,
            "not_shown": policy_input.not_shown,
        }


def _counted(all_spans: Iterable[Span], row: _MapRow, directory: _DirectoryRows) -> Iterator[Span]:
    """Yield the spans, and add them to the counts of the row and the directory."""
    for span in all_spans:
        row.counts[span.kind] += 1
        row.sizes[span.kind] += span.size
        if span.kind in ("torn", "damaged"):
            directory.damaged_count += 1
            if len(directory.damaged_spans) < MAX_LISTED_SPANS:
                directory.damaged_spans.append((row.segment.path.name, span.offset, span.size, span.why))
        yield span


def _runs(values: Iterable[int]) -> list[int]:
    """Return a run-length encoding: value, repetitions, next value, repetitions."""
    return [number for value, run in groupby(values) for number in (value, sum(1 for _ in run))]


def _type_names(formats: FormatSet) -> dict[tuple[str, int], str]:
    """Return (format, type byte) to display name. Bindings of the directory override assigned bytes."""
    types = [
        found.descriptor for found in formats.catalogue.registrations if isinstance(found.descriptor, RecordTypeDescriptor)
    ]
    assigned = [(one, one.assigned_byte) for one in types if one.assigned_byte is not None]
    bound = [(one, formats.bindings[one.name]) for one in types if one.name in formats.bindings]
    return {(one.format, byte): f"{one.name} (type {byte})" for one, byte in [*assigned, *bound]}
