"""Consistency of index, counts and segments: the checks of ``verify`` that read no record. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import attrs

from msgstore.contract import SegmentStats
from msgstore.engine.store import StoredMessage

What = Literal["outside_the_segment", "same_place", "overlap", "no_reference", "live_count", "live_bytes"]


@attrs.frozen
class Inconsistency:
    """One contradiction. Without an id it concerns the whole segment."""

    what: What
    detail: str
    msg_id: bytes | None = None
    offset: int | None = None
    size: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "id": self.msg_id.hex() if self.msg_id is not None else None,
            "offset": self.offset,
            "size": self.size,
            "detail": self.detail,
        }


def find_inconsistencies(segment: SegmentStats, file_size: int, entries: Iterable[StoredMessage]) -> Iterator[Inconsistency]:
    """Yield the contradictions of one segment. ``entries``: all index entries of the segment, by offset. ``file_size``: size of
    the file, not of the segment's row."""
    count = total = end = 0
    previous: StoredMessage | None = None
    for entry in entries:
        place = entry.msg_id, entry.offset, entry.size
        if entry.references < 1:
            yield Inconsistency("no_reference", f"{entry.references} references", *place)
        if entry.offset < segment.header_bytes or entry.offset + entry.size > file_size:
            inside = f"the segment's records are between {segment.header_bytes} and {file_size}"
            yield Inconsistency("outside_the_segment", inside, *place)
        if previous is not None and entry.offset == previous.offset:
            yield Inconsistency("same_place", f"so is {previous.msg_id.hex()}", *place)
        elif previous is not None and entry.offset < end:
            yield Inconsistency("overlap", f"the record before it, {previous.msg_id.hex()}, ends at {end}", *place)
        count, total = count + 1, total + entry.size
        previous, end = entry, max(end, entry.offset + entry.size)
    if segment.live_count != count:
        yield Inconsistency("live_count", f"the segment's row counts {segment.live_count} live records, the index has {count}")
    if segment.live_bytes != total:
        yield Inconsistency("live_bytes", f"the segment's row counts {segment.live_bytes} live bytes, the index has {total}")
