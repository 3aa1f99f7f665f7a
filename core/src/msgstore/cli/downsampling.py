"""Spans of many segments, as many as a page can hold: beyond that, neighbours that are short become blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from msgstore.cli.spans import Span

MAX_SPANS = 100_000
"""About how many a page draws one by one: some 5 MB of it, and a second in a browser."""


class MergedSpans(NamedTuple):
    """Neighbours together: too many for each to be told of."""

    offset: int
    size: int
    counts: Counter[str]
    """Spans of each kind."""
    sizes: Counter[str]
    """Bytes of each kind."""


Piece = Span | MergedSpans


def downsample(pieces: Iterable[Piece], grain: int) -> Iterator[Piece]:
    """Pieces shorter than ``grain`` bytes are merged with such neighbours until they are that long; no byte goes missing.

    At most 3 pieces for every ``grain`` bytes, and one more. Those that stand alone stay what they are.
    """
    short: list[Piece] = []
    size = 0
    for piece in pieces:
        if piece.size >= grain:
            yield from _together(short)
            yield piece
            short, size = [], 0
            continue
        short.append(piece)
        size += piece.size
        if size >= grain:
            yield from _together(short)
            short, size = [], 0
    yield from _together(short)


def _together(pieces: list[Piece]) -> Iterator[Piece]:
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
    """The pieces of one segment after the other, all of a page as many as ``limit``, or some more.

    All are exact as long as they are few. Once they are not, they are as coarse as the bytes of the whole page demand, so that
    no segment is sharper than the others.
    """

    def __init__(self, all_bytes: int, limit: int = MAX_SPANS) -> None:
        """``all_bytes``: of everything that will be added."""
        self.grain = 0
        """Bytes below which neighbours are merged; 0 while nothing is."""
        self.kept: list[list[Piece]] = []
        """Of each segment that was added."""
        self._room = limit
        self._coarse = max(1, -(-3 * all_bytes // limit))

    def add(self, pieces: Iterable[Piece]) -> None:
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
