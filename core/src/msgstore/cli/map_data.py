"""What the page of ``map --html`` shows, as one JSON object. ``map_paint.js`` reads it."""

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
from msgstore.cli.downsampling import MAX_SPANS, MergedSpans, Piece, Downsampler
from msgstore.cli.inputs import Inputs
from msgstore.cli.spans import KINDS, LiveReferences, Span, spans
from msgstore.contract import MsgStoreError, RecordTypeDescriptor
from msgstore.engine.segment.segment import Segment
from msgstore.jobs.policy_forecast import as_segment, picture_of, plans_of
from msgstore.scan import FormatSet, SegmentReport

MAX_LISTED_SPANS = 200
"""Damaged spans that a directory lists with their reasons."""
_CODES = {kind: chr(ord("a") + at) for at, kind in enumerate(KINDS)}
_BLOCK = "+"


@attrs.define
class _Row:
    """One segment of the page."""

    segment: Segment
    counts: Counter[str] = attrs.field(factory=Counter)
    sizes: Counter[str] = attrs.field(factory=Counter)


@attrs.define
class _Directory:
    path: Path
    live_known: bool
    rows: list[_Row] = attrs.field(factory=list)
    spots: list[tuple[str, int, int, str]] = attrs.field(factory=list)
    spot_count: int = 0


class PageData:
    """Collects what scans find, segment by segment; keeps no more than a page can show."""

    def __init__(self, inputs: Inputs, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: of all the segments that will be added."""
        self._inputs = inputs
        self._downsampler = Downsampler(all_bytes, limit)
        self._directories: list[_Directory] = []
        self._words: dict[str, int] = {}

    def add(self, report: SegmentReport, live: LiveReferences | None) -> None:
        """Segments of one directory come one after the other."""
        where = report.path.parent
        if not self._directories or self._directories[-1].path != where:
            self._directories.append(_Directory(where, live is not None))
        directory = self._directories[-1]
        row = _Row(as_segment(report, live is not None and report.path.name in live.quarantined))
        directory.rows.append(row)
        self._downsampler.add(_counted(spans(report, live), row, directory))
        row.segment.live_count = row.counts["live"] + row.counts["record"]
        row.segment.live_bytes = row.sizes["live"] + row.sizes["record"]

    def as_json(self, now: float) -> dict[str, Any]:
        """``now``: in seconds since the epoch, what the policies take it for."""
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

    def _directory(self, directory: _Directory, kept: Iterator[list[Piece]], now: float) -> dict[str, Any]:
        names = _type_names(self._inputs.formats(directory.path))
        segments = [self._segment(row, next(kept), names) for row in directory.rows]
        return {
            "path": str(directory.path),
            "live_known": directory.live_known,
            "segments": segments,
            "spots": directory.spots,
            "spot_count": directory.spot_count,
        } | self._plans(directory, now)

    def _segment(self, row: _Row, pieces: list[Piece], names: Mapping[tuple[str, int], str]) -> dict[str, Any]:
        form = row.segment.form
        records = [piece for piece in pieces if isinstance(piece, Span) and piece.msg_id]
        types = (names.get((form.name, r.type_byte), f"type {r.type_byte}") if form.typed else "" for r in records)
        return {
            "file": row.segment.path.name,
            "format": form.name,
            "size": row.segment.size,
            "quarantined": row.segment.quarantined,
            "totals": {_CODES[kind]: [row.counts[kind], row.sizes[kind]] for kind in row.counts},
            "kinds": "".join(_CODES[piece.kind] if isinstance(piece, Span) else _BLOCK for piece in pieces),
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
        """Texts that come again and again are told once."""
        return self._words.setdefault(text, len(self._words))

    def _plans(self, directory: _Directory, now: float) -> dict[str, Any]:
        """What the policies say, or why they were not asked."""
        catalogue, formats = self._inputs.catalogue, self._inputs.formats(directory.path)
        try:
            picture = picture_of(directory.path, catalogue, formats, [row.segment for row in directory.rows])
        except MsgStoreError as error:
            return {"unasked": str(error), "plans": []}
        return {
            "unasked": "",
            "plans": [attrs.asdict(plan) for plan in plans_of(catalogue, picture, now)],
            "size_limit": picture.size_limit,
            "current": picture.current,
            "not_shown": picture.not_shown,
        }


def _counted(everything: Iterable[Span], row: _Row, directory: _Directory) -> Iterator[Span]:
    for span in everything:
        row.counts[span.kind] += 1
        row.sizes[span.kind] += span.size
        if span.kind in ("torn", "damaged"):
            directory.spot_count += 1
            if len(directory.spots) < MAX_LISTED_SPANS:
                directory.spots.append((row.segment.path.name, span.offset, span.size, span.why))
        yield span


def _runs(values: Iterable[int]) -> list[int]:
    """Value, how often in a row, next value, how often."""
    return [number for value, run in groupby(values) for number in (value, sum(1 for _ in run))]


def _type_names(formats: FormatSet) -> dict[tuple[str, int], str]:
    """(format, type byte) to what to call it: record types that the directory binds, then what the specifications assign."""
    assigned = [
        (found.descriptor.format, found.descriptor.assigned_byte, found.descriptor.name)
        for found in formats.catalogue.registrations
        if isinstance(found.descriptor, RecordTypeDescriptor) and found.descriptor.assigned_byte is not None
    ]
    bound = [
        (found.descriptor.format, formats.bindings[found.descriptor.name], found.descriptor.name)
        for found in formats.catalogue.registrations
        if isinstance(found.descriptor, RecordTypeDescriptor) and found.descriptor.name in formats.bindings
    ]
    return {(form, byte): f"{name} (type {byte})" for form, byte, name in [*assigned, *bound]}
