"""Data of the page of ``map --html``, as one JSON object. ``map_paint.js`` reads it.

If there are more spans than a page can hold, short neighbours are merged.
"""

from __future__ import annotations

import base64
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import attrs

import msgstore
from msgstore.cli.inputs import Inputs
from msgstore.cli.spans import KINDS, LiveReferences, Span, spans
from msgstore.contract import MsgStoreError, RecordTypeDescriptor
from msgstore.engine.segment.segment import Segment
from msgstore.jobs.policy_forecast import as_segment, forecast, is_quarantined, make_policy_input
from msgstore.scan import FormatSet, SegmentReport, damaged_spans

MAX_LISTED_SPANS = 200
"""Damaged spans per directory that the page lists with their reasons."""
_CODES = {kind: chr(ord("a") + at) for at, kind in enumerate(KINDS)}
_MERGED = "+"
MAX_SPANS = 100_000
"""Approximate number of spans that a page draws one by one: about 5 MB, and a second in a browser."""


class MergedSpans(NamedTuple):
    """Neighbouring spans that are too many to show one by one."""

    offset: int
    size: int
    counts: Counter[str]
    """Number of spans of each kind."""
    sizes: Counter[str]
    """Bytes of each kind."""


Piece = Span | MergedSpans


def downsample(pieces: Iterable[Piece], grain: int) -> Iterator[Piece]:
    """Merge runs of pieces shorter than ``grain`` bytes until each run has that size. Together the result has the same bytes.

    Yields at most 3 pieces per ``grain`` bytes, plus one. A short piece without a short neighbour is unchanged.
    """
    short: list[Piece] = []
    size = 0
    for piece in pieces:
        if piece.size >= grain:
            yield from _merge(short)
            yield piece
            short, size = [], 0
            continue
        short.append(piece)
        size += piece.size
        if size >= grain:
            yield from _merge(short)
            short, size = [], 0
    yield from _merge(short)


def totals(pieces: Iterable[Piece]) -> tuple[Counter[str], Counter[str]]:
    """Return the number of spans and the bytes of each kind."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for piece in pieces:
        if isinstance(piece, MergedSpans):
            counts.update(piece.counts)
            sizes.update(piece.sizes)
        else:
            counts[piece.kind] += 1
            sizes[piece.kind] += piece.size
    return counts, sizes


def _merge(pieces: list[Piece]) -> list[Piece]:
    if len(pieces) < 2:
        return pieces
    counts, sizes = totals(pieces)
    return [MergedSpans(pieces[0].offset, sum(sizes.values()), counts, sizes)]


@attrs.define
class _Directory:
    """Segments and damaged spans of one directory."""

    path: Path
    live_known: bool
    segments: list[Segment] = attrs.field(factory=list)
    damaged_spans: list[tuple[str, int, int, str]] = attrs.field(factory=list)
    damaged_count: int = 0


class PageData:
    """Collects scan results segment by segment. Keeps no more spans than a page can show."""

    def __init__(self, inputs: Inputs, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: total size of all segments that will be added. They decide the resolution, the same for all segments,
        once there are more than ``limit`` spans."""
        self._inputs = inputs
        self._kept: list[list[Piece]] = []
        """Pieces of each added segment."""
        self._room = limit
        self._grain = 0
        """Bytes below which neighbours are merged; 0 while none are."""
        self._coarse = max(1, -(-3 * all_bytes // limit))
        self._directories: list[_Directory] = []
        self._words: dict[str, int] = {}

    def add(self, report: SegmentReport, live: LiveReferences | None) -> None:
        """Add one segment. Segments of one directory must be added one after another."""
        parent = report.path.parent
        if not self._directories or self._directories[-1].path != parent:
            self._directories.append(_Directory(parent, live is not None))
        directory = self._directories[-1]
        quarantined = (live is not None and report.path.name in live.quarantined) or is_quarantined(report)
        directory.segments.append(
            as_segment(
                report.path,
                report.format,
                report.size,
                report.scan.end.state,
                damaged=report.is_damaged,
                quarantined=quarantined,
            )
        )
        damaged = [(report.path.name, span.offset, span.size, span.reason) for span in damaged_spans(report) if span.size]
        directory.damaged_count += len(damaged)
        directory.damaged_spans += sorted(damaged)[: MAX_LISTED_SPANS - len(directory.damaged_spans)]
        self._keep(spans(report, live))

    def _keep(self, pieces: Iterator[Piece]) -> None:
        """Keep the spans of one segment. If the limit is exceeded, downsample all segments."""
        if not self._grain:
            first = list(islice(pieces, self._room + 1))
            if len(first) <= self._room:
                self._room -= len(first)
                self._kept.append(first)
                return
            self._grain = self._coarse
            self._kept = [list(downsample(earlier, self._grain)) for earlier in self._kept]
            pieces = chain(first, pieces)
        self._kept.append(list(downsample(pieces, self._grain)))

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the data of the page. ``now``: time for the policies, in seconds since the epoch."""
        kept = iter(self._kept)
        stores = [self._directory(directory, kept, now) for directory in self._directories]
        return {
            "made": datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": msgstore.__version__,
            "kinds": [[_CODES[kind], kind, meaning] for kind, (meaning, *_) in KINDS.items()],
            "grain": self._grain,
            "stores": stores,
            "words": list(self._words),
        }

    def _directory(self, directory: _Directory, kept: Iterator[list[Piece]], now: float) -> dict[str, Any]:
        names = _type_names(self._inputs.formats(directory.path))
        segments = [self._segment(segment, next(kept), names) for segment in directory.segments]
        return {
            "path": str(directory.path),
            "live_known": directory.live_known,
            "segments": segments,
            "spots": directory.damaged_spans,
            "spot_count": directory.damaged_count,
        } | self._plans(directory, now)

    def _segment(self, segment: Segment, pieces: list[Piece], names: Mapping[tuple[str, int], str]) -> dict[str, Any]:
        """Return the data of a segment, and set its live records for the policies."""
        form = segment.form
        counts, sizes = totals(pieces)
        segment.live_count = counts["live"] + counts["record"]
        segment.live_bytes = sizes["live"] + sizes["record"]
        records = [piece for piece in pieces if isinstance(piece, Span) and piece.msg_id]
        types = (names.get((form.name, r.type_byte), f"type {r.type_byte}") if form.typed else "" for r in records)
        return {
            "file": segment.path.name,
            "format": form.name,
            "size": segment.size,
            "quarantined": segment.quarantined,
            "totals": {_CODES[kind]: [counts[kind], sizes[kind]] for kind in counts},
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

    def _plans(self, directory: _Directory, now: float) -> dict[str, Any]:
        """Return the forecasts of the policies, or why none was made."""
        catalogue, formats = self._inputs.catalogue, self._inputs.formats(directory.path)
        try:
            policy_input = make_policy_input(directory.path, catalogue, formats, directory.segments)
        except MsgStoreError as error:
            return {"unasked": str(error), "plans": []}
        return {
            "unasked": "",
            "plans": [attrs.asdict(plan) for plan in forecast(catalogue, policy_input, now)],
            "size_limit": policy_input.size_limit,
            "current": policy_input.current,
            "not_shown": policy_input.not_shown,
        }


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
