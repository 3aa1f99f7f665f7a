"""Page of ``map --html``: one self-contained file that makes no network request. Its script draws the data in it.

If there are more spans than a page can hold, short neighbours are merged.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files as package_files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import attrs

import msgstore
from msgstore.cli.spans import KINDS, LiveReferences, Span, spans
from msgstore.contract import Damage, MsgStoreError, StoreError
from msgstore.directory import SETTINGS, segment_number
from msgstore.engine.segment.segment import Segment
from msgstore.files import Files
from msgstore.jobs.policy_forecast import forecast, make_policy_input
from msgstore.jobs.reading.segment_check import is_quarantined
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, SegmentReport, damaged_spans

MARK = '<meta name="generator" content="msgstore map">'
"""Text near the beginning of every page. A file with it may be replaced by a newer page."""
_MARK_SEARCH_BYTES = 1024
MAX_LISTED_SPANS = 200
"""Damaged spans per directory that the page lists with their reasons."""
MAX_SPANS = 100_000
"""Approximate number of spans that a page draws one by one: about 8 MB, and a second in a browser."""


class Merged(NamedTuple):
    """Neighbouring spans that are too many to show one by one."""

    size: int
    counts: Counter[str]
    """Number of spans of each kind."""
    sizes: Counter[str]
    """Bytes of each kind."""


Piece = Span | Merged


def totals(pieces: Iterable[Piece]) -> tuple[Counter[str], Counter[str]]:
    """Return the number of spans and the bytes of each kind."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for piece in pieces:
        if isinstance(piece, Merged):
            counts.update(piece.counts)
            sizes.update(piece.sizes)
        else:
            counts[piece.kind] += 1
            sizes[piece.kind] += piece.size
    return counts, sizes


def merge_short(pieces: Iterable[Piece], grain: int) -> list[Piece]:
    """Merge runs of pieces shorter than ``grain`` bytes until each run has that size. Together the result has the same bytes.

    Returns at most 3 pieces per ``grain`` bytes, plus one. A short piece without a short neighbour is unchanged.
    """
    merged: list[Piece] = []
    run: list[Piece] = []
    size = 0

    def end_run() -> None:
        nonlocal size
        merged.extend(run if len(run) < 2 else [Merged(size, *totals(run))])
        run.clear()
        size = 0

    for piece in pieces:
        if piece.size >= grain:
            end_run()
            merged.append(piece)
            continue
        run.append(piece)
        size += piece.size
        if size >= grain:
            end_run()
    end_run()
    return merged


class PageData:
    """Collects scan results segment by segment. Keeps no more spans than a page can show."""

    def __init__(self, catalogue: Catalogue, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: total size of all segments that will be added. They decide the resolution, the same for all segments,
        once there are more than ``limit`` spans."""
        self._catalogue = catalogue
        self._limit = limit
        self._coarse = max(1, -(-3 * all_bytes // limit))
        self._grain = 0
        """Bytes below which neighbours are merged; 0 while none are."""
        self._pieces: list[list[Piece]] = []
        """Pieces of each added segment."""
        self._segments: list[tuple[Segment, list[Damage], bool]] = []
        """Each added segment, its damaged spans, and True if its live records are known."""

    def add(self, report: SegmentReport, live: LiveReferences | None) -> None:
        """Add one segment. Segments of one directory must be added one after another."""
        quarantined = (live is not None and report.path.name in live.quarantined) or is_quarantined(report)
        pieces: list[Piece] = list(spans(report, live))
        counts, sizes = totals(pieces)
        segment = Segment(
            -1,
            report.path,
            report.format,
            report.size,
            counts["live"] + counts["record"],
            sizes["live"] + sizes["record"],
            appendable=not (report.is_damaged or quarantined),
            quarantined=quarantined,
            torn=report.scan.end.state == "torn",
        )
        damaged = sorted((span for span in damaged_spans(report) if span.size), key=lambda span: span.offset)
        self._segments.append((segment, damaged, live is not None))
        self._pieces.append(merge_short(pieces, self._grain) if self._grain else pieces)
        if not self._grain and sum(map(len, self._pieces)) > self._limit:
            self._grain = self._coarse
            self._pieces = [merge_short(earlier, self._grain) for earlier in self._pieces]

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the data of the page. ``now``: time for the policies, in seconds since the epoch."""
        numbers = groupby(range(len(self._segments)), key=lambda number: self._segments[number][0].path.parent)
        return {
            "made": datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": msgstore.__version__,
            "kinds": {kind: meaning for kind, (meaning, *_) in KINDS.items()},
            "grain": self._grain,
            "stores": [self._store(directory, list(group), now) for directory, group in numbers],
        }

    def _store(self, directory: Path, numbers: list[int], now: float) -> dict[str, Any]:
        found = [self._segments[number] for number in numbers]
        damaged = [(one.path.name, s.offset, s.size, s.reason) for one, spans_of_one, _ in found for s in spans_of_one]
        return {
            "path": str(directory),
            "live_known": found[0][2],
            "segments": [_segment_as_json(self._segments[number][0], self._pieces[number]) for number in numbers],
            "damage": damaged[:MAX_LISTED_SPANS],
            "damage_count": len(damaged),
            **self._plans(directory, [segment for segment, _, _ in found], now),
        }

    def _plans(self, directory: Path, segments: list[Segment], now: float) -> dict[str, Any]:
        """Return the forecasts of the policies, or why none was made."""
        try:
            policy_input = make_policy_input(directory, self._catalogue, FormatSet(self._catalogue), segments)
        except MsgStoreError as error:
            return {"unasked": str(error), "plans": []}
        return {
            "unasked": "",
            "plans": [attrs.asdict(plan) for plan in forecast(self._catalogue, policy_input, now)],
            "size_limit": policy_input.size_limit,
            "not_shown": policy_input.not_shown,
        }


def _segment_as_json(segment: Segment, pieces: list[Piece]) -> dict[str, Any]:
    counts, sizes = totals(pieces)
    return {
        "file": segment.path.name,
        "size": segment.size,
        "quarantined": segment.quarantined,
        "totals": {kind: (counts[kind], sizes[kind]) for kind in KINDS if kind in counts},
        "pieces": [_as_row(piece, segment.form.type_names if segment.form.typed else None) for piece in pieces],
    }


def _as_row(piece: Piece, names: Mapping[int, str] | None) -> list[Any]:
    """Return [size, kind, why, id, type, references] of a span, without empty members at the end, or [size, number and bytes of
    each kind]. ``names``: record types of a typed format."""
    if isinstance(piece, Merged):
        return [piece.size, {kind: (piece.counts[kind], piece.sizes[kind]) for kind in piece.counts}]
    row = [piece.size, piece.kind, piece.why]
    if piece.msg_id:
        name = names.get(piece.type_byte) if names is not None else None
        type_name = "" if names is None else f"{name} (type {piece.type_byte})" if name else f"type {piece.type_byte}"
        row += [piece.msg_id.hex(), type_name, piece.references]
    while not row[-1]:
        row.pop()
    return row


# -- the file ---------------------------------------------------------------------------------------------------------------


def check_target(path: Path, catalogue: Catalogue, *, force: bool) -> Path:
    """Return the path that the page will be written to, with symbolic links resolved. Raises StoreError for an unsuitable path.

    Without ``force``, refuses to replace a file that is not such a page: the arguments are easily swapped.
    """
    target = Path(os.path.realpath(path))
    if target.name == SETTINGS or segment_number(target.name, catalogue.formats_by_extension()) is not None:
        raise StoreError(f"{path}: has the name of a part of a store. Give a name such as map.html.")
    if os.path.lexists(target) and not target.is_file():
        raise StoreError(f"{path}: is not a regular file. Give the name of one, such as map.html.")
    if not target.parent.is_dir():
        raise StoreError(f"{path}: there is no directory {target.parent}. Create it first.")
    if target.exists() and not force:
        with target.open("rb") as stream:
            if MARK.encode() not in stream.read(_MARK_SEARCH_BYTES):
                raise StoreError(f"{path}: exists and is not a page of 'msgstore map'. Use --force to replace it.")
    return target


def write_page(path: Path, data: Mapping[str, Any]) -> int:
    """Write the page atomically. Returns its size in bytes. Raises StoreError."""
    page = render(data).encode("utf-8")
    try:
        Files().write_file(path, [page], sync=False)
    except OSError as error:
        raise StoreError(f"{path}: the page cannot be written: {error.strerror or error}. Nothing was left behind.") from error
    return len(page)


def render(data: Mapping[str, Any]) -> str:
    """Return the page. Its policy allows only its own style and script, by hash, so that text of segments stays text."""
    template, style, script = (
        package_files("msgstore.cli").joinpath(f"map_page.{part}").read_text(encoding="utf-8") for part in ("html", "css", "js")
    )
    title = ", ".join(store["path"] for store in data["stores"]) or "no segments"
    return Template(template).substitute(
        mark=MARK,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        title=html.escape(title.encode("utf-8", "replace").decode()),
        style=style,
        script=script,
        data=as_inline_json(data),
    )


def as_inline_json(value: object) -> str:
    """Return JSON for a script element. It contains no character that could end the element or start another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
