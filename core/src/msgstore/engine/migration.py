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
from msgstore.engine.moves import Live
from msgstore.engine.reader import Reader
from msgstore.engine.segments import Segment
from msgstore.engine.writer import FLUSH_BYTES, Writer


def legacy_segments(writer: Writer) -> list[Segment]:
    """Segments of an older generation than the store writes, oldest first."""
    generation = writer.backends.write_format.descriptor.generation
    return [segment for segment in writer.segments if segment.form.descriptor.generation < generation]


def migrate(writer: Writer, reader: Reader, segment: Segment) -> Collected:
    """Under the store's lock, with nothing pending. The segment's live records begin a fresh segment."""
    before = segment.size
    with writer.segments.errors(segment), writer.segments.files.view(segment.path) as data:
        scan = segment.form.format.scan(data)
    live = live_records(writer.index, segment, scan)
    reason = unsafe(segment, scan, live)
    if reason:
        quarantine(writer, segment, reason)
        return Collected(segment.path.name, before, before, skipped=reason)
    moved = sum(record.size for record in live)
    copies = _Copies()
    writer.seal()
    try:
        with writer.segments.synced(), writer.segments.unnamed():  # confirmed long ago: a power loss must not cost it
            for batch in _batches(live):
                copies.add(writer, reader, segment, batch)
    except CorruptRecord as error:
        quarantine(writer, segment, str(error))
        return Collected(segment.path.name, before, before, skipped=str(error))
    writer.index.relocate(copies.ids, copies.old, copies.new)
    writer.account(copies.appended)
    segment.live_count -= len(live)
    segment.live_bytes -= moved
    writer.touch(segment)
    writer.commit()
    writer.note_empty(segment)
    writer.delete_empty()
    writer.commit()
    written = sum(size for _, _, size in copies.appended)
    return Collected(segment.path.name, before, 0, len(live), moved, written)


@attrs.define
class _Copies:
    """What was copied: where it was, and where it is."""

    ids: list[bytes] = attrs.field(factory=list)
    old: list[int] = attrs.field(factory=list)
    new: list[int] = attrs.field(factory=list)
    appended: list[tuple[Segment, int, int]] = attrs.field(factory=list)

    def add(self, writer: Writer, reader: Reader, segment: Segment, batch: Sequence[Live]) -> None:
        ids = [record.msg_id for record in batch]
        old = [pack(segment.number, record.offset, record.size) for record in batch]
        bodies = [reader.stored(msg_id, location) for msg_id, location in zip(ids, old, strict=True)]
        self.new += writer.append(ids, bodies, self.appended)
        self.ids += ids
        self.old += old


def _batches(live: Sequence[Live]) -> Iterator[list[Live]]:
    batch: list[Live] = []
    size = 0
    for record in live:
        if batch and size + record.size > FLUSH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record.size
    if batch:
        yield batch
