"""Migration: rewrite a segment of an older format as fresh segments of the store's own, then delete it.

The new records are on disk, and synced, before their segment has its name; then the index is swapped to them, and committed
before the old file goes. A crash leaves whole copies; the entries of the index, or the higher number, decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from msgstore.contract import CorruptRecord
from msgstore.contract.locations import pack
from msgstore.engine.compaction import Collected, live_records, quarantine, unsafe
from msgstore.engine.ledger import Part
from msgstore.engine.moves import Live
from msgstore.engine.reader import Reader
from msgstore.engine.segments import Segment
from msgstore.engine.writer import Writer

BATCH = 2**20
"""Bytes of records that are copied at a time."""


def legacy_segments(writer: Writer) -> list[Segment]:
    """Segments of an older generation than the store writes, oldest first."""
    generation = writer.backends.write_format.descriptor.generation
    return [segment for segment in writer.ledger.segments if segment.form.descriptor.generation < generation]


def migrate(writer: Writer, reader: Reader, segment: Segment) -> Collected:
    """With ``flushing``, without the lock. The segment's live records begin a fresh segment."""
    ledger, appender = writer.ledger, writer.appender
    before = segment.size
    with ledger.segments.errors(segment), ledger.segments.files.view(segment.path) as data:
        scan = segment.form.format.scan(data)
    with ledger.lock:
        ledger.forget_lingering(segment)
        live, expected = live_records(writer.index, segment, scan), segment.live_count
    reason = unsafe(segment, scan, live, expected)
    if reason:
        quarantine(ledger, segment, reason)
        return Collected(segment.path.name, before, before, skipped=reason)
    copies = _Copies()
    appender.seal()
    try:
        with ledger.segments.synced(), ledger.segments.unnamed():  # confirmed long ago: a power loss must not cost it
            for batch in _batches(live):
                copies.add(writer, reader, segment, batch)
    except CorruptRecord as error:
        quarantine(ledger, segment, str(error))
        return Collected(segment.path.name, before, before, skipped=str(error))
    with ledger.lock:
        dead = [(i, new) for i, old, new in copies.moves() if writer.index.get(i) != old]
        writer.index.relocate(copies.ids, copies.old, copies.new)
        ledger.account(copies.parts)
        ledger.bury(dead)
        segment.live_count = segment.live_bytes = 0
        ledger.forget_lingering(segment)
        ledger.note_empty(segment)
    ledger.touch(segment)
    ledger.commit()
    ledger.delete_empty()
    written = sum(size for _, _, size in copies.parts)
    return Collected(segment.path.name, before, 0, len(live), sum(record.size for record in live), written)


@attrs.define
class _Copies:
    """What was copied: where it was, and where it is."""

    ids: list[bytes] = attrs.field(factory=list)
    old: list[int] = attrs.field(factory=list)
    new: list[int] = attrs.field(factory=list)
    parts: list[Part] = attrs.field(factory=list)

    def moves(self) -> Iterator[tuple[bytes, int, int]]:
        return zip(self.ids, self.old, self.new, strict=True)

    def add(self, writer: Writer, reader: Reader, segment: Segment, batch: Sequence[Live]) -> None:
        ids = [record.msg_id for record in batch]
        old = [pack(segment.number, record.offset, record.size) for record in batch]
        bodies = [reader.stored(msg_id, location) for msg_id, location in zip(ids, old, strict=True)]
        appended = writer.appender.append(ids, bodies)
        self.new += appended.locations
        self.parts += appended.parts
        self.ids += ids
        self.old += old


def _batches(live: Sequence[Live]) -> Iterator[list[Live]]:
    batch: list[Live] = []
    size = 0
    for record in live:
        if batch and size + record.size > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record.size
    if batch:
        yield batch
