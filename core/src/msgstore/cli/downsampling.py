"""Downsampling of the spans of many segments to as many as a page can hold: short neighbours are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from msgstore.cli.spans import Span

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


def _merge(pieces: list[Piece]) -> Iterator[Piece]:
    if len(pieces) < 2:
        yield from pieces
        return
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for piece in pieces:
        if isinstance(piece, MergedSpans):
            counts.update(piece.counts)
            sizes.update(piece.sizes)
        else:
            counts[piece.kind] += 1
            sizes[piece.kind] += piece.size
    yield MergedSpans(pieces[0].offset, sum(sizes.values()), counts, sizes)


class Downsampler:
    """Collects the pieces of one segment after another; of a whole page not many more than ``limit``.

    While there are few pieces, all are exact. Afterwards the bytes of the whole page decide the resolution, so that it is the
    same for all segments.
    """

    def __init__(self, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: total size of everything that will be added."""
        self.grain = 0
        """Bytes below which neighbours are merged; 0 while none are."""
        self.kept: list[list[Piece]] = []
        """Pieces of each added segment."""
        self._room = limit
        self._coarse = max(1, -(-3 * all_bytes // limit))

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add the pieces of one segment. If the limit is exceeded, downsample all segments."""
        rest = iter(pieces)
        if not self.grain:
            first = list(islice(rest, self._room + 1))
            if len(first) <= self._room:
                self._room -= len(first)
                self.kept.append(first)
                return
            self.grain = self._coarse
            self.kept = [list(downsample(earlier, self.grain)) for earlier in self.kept]
            rest = chain(first, rest)
        self.kept.append(list(downsample(rest, self.grain)))
