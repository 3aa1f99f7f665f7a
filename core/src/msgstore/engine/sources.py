"""Segments at work: what of a sealed segment is alive, while writers, readers and removers go on.

A segment is *marked* under the store's lock. From then on nobody deletes it, no dead record in it is revived, and the locations
of records that die are noted. So what a scan finds alive without the lock, and what died since the mark, must be together what
was alive at the mark, to a record: if it is not, the index and the segment do not agree, and nothing may be overwritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import attrs

from msgstore.contract import Buffer, Index, SegmentScan
from msgstore.contract.locations import NUMBER_SHIFT, OFFSET_SHIFT, pack
from msgstore.engine.moves import Live
from msgstore.engine.segments import Segment
from msgstore.engine.site import Site


class Unsound(Exception):
    """A segment that must not be rewritten or deleted."""

    def __init__(self, segment: Segment, reason: str, *, damaged: bool = True) -> None:
        super().__init__(reason)
        self.segment = segment
        self.reason = reason
        self.damaged = damaged


@attrs.define
class Source:
    segment: Segment
    count: int
    """Live records when it was marked."""

    def live(self, site: Site, data: Buffer) -> list[Live]:
        """The records of ``data``, the whole segment, that are alive, by offset. Raises Unsound.

        Without the lock; some may be dead when this returns, and then ``segment.died`` has them.
        """
        segment = self.segment
        scan = segment.form.format.scan(data)
        reason = _damage(segment, scan)
        if reason:
            raise Unsound(segment, reason)
        live = live_records(site.index, segment.number, scan)
        known = {pack(segment.number, record.offset, record.size) for record in live}
        with site.ledger.lock:
            known |= self.died
        if len(known) != self.count:
            lost = self.count - len(known)
            raise Unsound(segment, f"{lost} of its {self.count} live records are not where the index says")
        return live

    @property
    def died(self) -> set[int]:
        """Under the lock: the locations of the records that died since the mark."""
        assert self.segment.died is not None
        return self.segment.died

    @property
    def name(self) -> str:
        return self.segment.path.name


@contextlib.contextmanager
def marked(site: Site, numbers: Sequence[int]) -> Iterator[list[Source]]:
    """Inside, the segments are marked; none if one of them is gone meanwhile, or is empty and about to go.

    One that is empty afterwards is noted for deletion.
    """
    # In turn: records that were appended just before a segment was sealed may not be in the index yet.
    with site.turn(), site.ledger.lock:
        found = [segment for number in numbers if (segment := site.segments.by_number.get(number))]
        segments = found if len(found) == len(numbers) and any(segment.live_count for segment in found) else []
        for segment in segments:
            segment.died = set()
            site.ledger.forget_lingering(segment)
        sources = [Source(segment, segment.live_count) for segment in segments]
    try:
        yield sources
    finally:
        with site.ledger.lock:
            for segment in segments:
                segment.died = None
            for segment in found:
                if not segment.live_count:
                    site.ledger.note_empty(segment)


def live_records(index: Index, number: int, scan: SegmentScan) -> list[Live]:
    """The records of a scan that the index points to, by offset. A later copy counts if it is the one pointed to."""
    first, get = number << NUMBER_SHIFT, index.get
    found = [
        Live(offset, size, msg_id)
        for columns in (scan.records, scan.duplicates)
        for msg_id, offset, size in zip(columns.id_list(), columns.offsets, columns.sizes, strict=True)
        if get(msg_id) == first | offset << OFFSET_SHIFT | size
    ]
    found.sort(key=lambda record: record.offset)
    return found


def _damage(segment: Segment, scan: SegmentScan) -> str | None:
    """Why a segment must not be rewritten or deleted after this scan; None if it may."""
    torn_write = scan.end.state == "torn" and not segment.quarantined  # never finished, and nothing stands behind it
    if scan.end.state != "clean" and not torn_write:
        return f"its end is {scan.end.state} at offset {scan.end.offset}" + (f" ({scan.end.reason})" if scan.end.reason else "")
    if scan.damage:
        return f"it is damaged at offset {scan.damage[0].offset} ({scan.damage[0].reason})"
    return None
