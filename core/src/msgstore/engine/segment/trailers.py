"""Trailers: what some formats end a segment in that takes no more records. See :class:`msgstore.contract.TrailingFormat`.

A trailer is made of what is in the file, which was written moments ago. Nothing needs one: what keeps it from being written is
logged, and the segment is as good without. A crash before it leaves none; inside it, a torn end behind whole records; after it,
a hole that the next start passes over, for a row of the index speaks of the segment as it was in front of it.
"""

from __future__ import annotations

import logging

from msgstore.contract import StoreIOError
from msgstore.engine.segment.segments import Segment, Segments

log = logging.getLogger("msgstore.segments")


def trailer_of(segments: Segments, segment: Segment) -> bytes:
    """The trailer of a segment as it is; nothing if its format has none, or fails to make one. Raises StoreIOError."""
    form = segment.form.trailing
    if form is None:
        return b""
    with segments.errors(segment), segments.files.view(segment.path) as data:
        try:
            return bytes(memoryview(form.trailer(data)))
        except Exception:  # a store that cannot be flushed or closed any more would be the price of what nobody needs
            log.exception("%s gets no trailer: format %r failed to make it", segment.path, segment.form.name)
            return b""


def append_trailer(segments: Segments, segment: Segment) -> None:
    """To the current segment, which is about to be sealed for good. As durable as a record. With ``LiveAccounting.flushing``."""
    try:
        if trailer := trailer_of(segments, segment):
            segments.append(trailer)
            segments.hints.trailed(segment, len(trailer))
    except StoreIOError as error:
        log.warning("%s is sealed without a trailer: %s", segment.path, error)
