"""Compaction by copy: copy the live records of segments into new segments of the store's format, then delete the old ones.

This combines two segments, migrates a segment of an older format, and compacts a segment of a format without COMPACTABLE. The
order keeps a copy of every live record after a crash at any instant, and revives no removed message:

1. The copies are written under temporary names, which recovery deletes, and synced.
2. The index is committed with rows for the copies, in which nothing is alive yet.
3. The copies get their final names, and the directory is synced.
4. The index entries are relocated to the copies and committed.
5. The old segments are deleted: they are empty now.

After a crash between 3 and 4 recovery finds the copies, sees in their rows that nothing is alive in them, and deletes them.
Without rows it would take all their records for new, and revive what was removed since step 1. An index that is not persistent
has no rows and knows no removal: of copies in several files it uses the one with the highest number, and any copy is good.

Writers, readers and removers go on; locks are taken to reserve numbers and to relocate a batch of entries at a time. A record
that dies meanwhile is dead in the copy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import attrs

from msgstore.contract import Buffer, Columns, RecordError, SegmentFormat, StoreIOError
from msgstore.contract.events import CollectionOutcome
from msgstore.directory import TEMP_SUFFIX
from msgstore.engine.compact.gc_context import (
    CollectionResult,
    GcContext,
    InconsistentSegment,
    LiveRecords,
    PinnedSegment,
    Relocation,
    blamed,
    relocate,
)
from msgstore.engine.segment.segment import Segment, remove_file
from msgstore.locations import pack_locations
from msgstore.scan import OpenFormat
from msgstore.scan.formats import scan_checked

_AT_ONCE = 2**20
"""Bytes that are copied with one write."""


def compact_by_copy(context: GcContext, sources: Sequence[PinnedSegment], outcome: CollectionOutcome) -> list[CollectionResult]:
    """Copy the live records of pinned segments, in this order, and leave the segments empty. Caller holds no lock.

    Raises InconsistentSegment, StoreIOError: a part may be done then, and a later collection can do the rest.
    """
    copies, results = _Copies(context), list[CollectionResult]()
    accounting = context.accounting
    try:
        for source in sources:
            segment = source.segment
            with context.segments.errors(segment), context.segments.files.view(segment.path) as data:
                live = source.live(context, data)
                written = sum(copies.add(source, records, data) for records in _batches(live, context.size_limit))
            moved = CollectionResult(segment.path.name, segment.size, 0, len(live), sum(live.sizes), written, outcome=outcome)
            results.append(moved)
        copies.finish(max((source.segment.sealed_mtime_ns or time.time_ns() for source in sources), default=0))
        copies.publish()
    except BaseException:
        copies.discard()
        raise
    try:
        for batch in copies.batches:
            relocate(context, batch)
    finally:
        with accounting.state_lock:
            for segment in copies.segments:
                segment.died_since_pin = None
                if not segment.live_count:
                    accounting.queue_deletion(segment)
    context.commit()
    return results


@attrs.define
class _Copies:
    """New segments, and the records that were written to them. They have temporary names until ``publish``."""

    context: GcContext
    segments: list[Segment] = attrs.field(factory=list)
    batches: list[Relocation] = attrs.field(factory=list)
    _fd: int | None = None
    """Descriptor of the last one until it is synced."""
    _found: list[Columns] = attrs.field(factory=list)
    """Records that were read back from each, for its hint file."""

    def add(self, source: PinnedSegment, live: LiveRecords, data: Buffer) -> int:
        """Append copies of records, and return their size. They are not synced yet.

        A record of the store's own format is copied as it is: it may hold more than id and body.
        """
        form, segments = self.context.form, self.context.segments
        records = [data[offset : offset + size] for offset, size in zip(live.offsets, live.sizes, strict=True)]
        bodies = _stored_bodies(source.segment, live, records, form)
        encoded, sizes = b"".join(records), live.sizes
        if source.segment.form.name != form.name:
            with blamed(source.segment, form, "encode"):
                encoded, sizes = form.encode(live.ids, bodies)
                begins = accumulate(sizes, initial=0)
                written = [encoded[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
                if list(map(form.format.decode, live.ids, written)) != bodies:
                    raise ValueError("the records do not hold the bodies that they were made of")
        if self._fd is None or self.segments[-1].size >= self.context.size_limit:
            self._begin()
        assert self._fd is not None
        target = self.segments[-1]
        with segments.errors(target, target.size):
            segments.files.pwrite(self._fd, encoded, target.size)
        new = pack_locations(target.number, list(accumulate(sizes[:-1], initial=target.size)), sizes)
        self.batches.append(Relocation(source, target, live.ids, live.locations(source.segment.number), new))
        target.size += len(encoded)
        return len(encoded)

    def _begin(self) -> None:
        self._sync()
        segments, form = self.context.segments, self.context.form
        with self.context.accounting.flush_lock:
            number = segments.reserve()
        path = _unnamed(segments.directory / f"{number}{form.descriptor.extension}")
        copy = Segment(number, path, form, len(form.format.header))
        with segments.errors(copy):
            segments.files.unlink(path)  # left by a crash
            self._fd = segments.files.create(path)
            self.segments.append(copy)
            segments.files.pwrite(self._fd, form.format.header, 0)

    def _sync(self) -> None:
        """Sync and close the last copy, with any durability: its records were confirmed long ago."""
        fd, self._fd = self._fd, None
        files = self.context.segments.files
        if fd is not None:
            with self.context.segments.errors(self.segments[-1]), files.closing(fd):
                files.sync(fd)

    def finish(self, mtime_ns: int) -> None:
        """Complete the copies, and read them back before the sources are deleted. Each gets the modification time of the
        youngest source. Raises InconsistentSegment, StoreIOError."""
        self._sync()
        files, form = self.context.segments.files, self.context.form
        for segment in self.segments:
            batches = [batch for batch in self.batches if batch.target is segment]
            with self.context.segments.errors(segment):
                with files.view(segment.path) as data, blamed(batches[0].source.segment, form, "scan"):
                    self._found.append(_checked_copy(form.format, segment.number, data, batches))
                _, segment.sealed_mtime_ns = files.set_mtime(segment.path, mtime_ns)

    def publish(self) -> None:
        """Commit rows for the copies, and give them their final names: steps 2 and 3."""
        segments, accounting = self.context.segments, self.context.accounting
        with accounting.state_lock, accounting.change:
            for segment in self.segments:
                segment.path = segment.path.with_name(segment.path.name.removesuffix(TEMP_SUFFIX))
                segment.died_since_pin = set()  # pinned: it must not be deleted between two batches
                segments.by_number[segment.number] = segment
                accounting.mark_dirty(segment)
        self.context.commit()
        for segment in self.segments:
            with segments.errors(segment):
                segments.files.replace(_unnamed(segment.path), segment.path)
        segments.sync_directory()
        for segment, found in zip(self.segments, self._found, strict=True):
            segments.hints.write_one(segment, (found.ids, found.offsets, found.sizes))

    def discard(self) -> None:
        """Delete the copies after a failure. The rest is deleted by the next opening, or with the empty segments."""
        segments, accounting = self.context.segments, self.context.accounting
        with contextlib.suppress(StoreIOError):
            self._sync()
        for copy in self.segments:
            with contextlib.suppress(OSError):
                remove_file(segments.files, _unnamed(copy.path), erase=segments.erase)
            if copy.number in segments.by_number:
                with accounting.state_lock:
                    copy.died_since_pin = None
                    accounting.queue_deletion(copy)


def _unnamed(path: Path) -> Path:
    """Return the temporary name of a copy."""
    return path if path.suffix == TEMP_SUFFIX else path.with_name(path.name + TEMP_SUFFIX)


def _batches(live: LiveRecords, limit: int) -> Iterator[LiveRecords]:
    """Yield parts of at most 1 MiB and at most a segment, unless one record is larger."""
    begin = size = 0
    for at, more in enumerate(live.sizes):
        if at > begin and size + more > min(_AT_ONCE, limit):
            yield live.part(begin, at)
            begin, size = at, 0
        size += more
    if begin < len(live):
        yield live.part(begin, len(live))


def _stored_bodies(segment: Segment, live: LiveRecords, records: Sequence[bytes], target: OpenFormat) -> list[bytes]:
    """Decode records. Raises InconsistentSegment for a damaged one, and for a body that ``target`` cannot hold."""
    bodies: list[bytes] = []
    damage: RecordError | None = None
    with blamed(segment, segment.form, "decode"):
        try:
            bodies.extend(map(segment.form.format.decode, live.ids, records))
        except RecordError as error:
            damage = error
        if not set(map(type, bodies)) <= {bytes}:
            raise TypeError("a body is not bytes")
    if damage is not None:
        raise InconsistentSegment(
            segment, f"the record at offset {live.offsets[len(bodies)]} is damaged ({damage})"
        ) from damage
    for offset, body in zip(live.offsets, bodies, strict=True):
        if len(body) > target.format.max_body:
            reason = f"the body at offset {offset} is too large for format {target.name!r}"
            raise InconsistentSegment(segment, reason, damaged=False)
    return bodies


def _checked_copy(form: SegmentFormat, number: int, data: Buffer, batches: Sequence[Relocation]) -> Columns:
    """Return the records of a copy. Raises ValueError unless they are exactly those of ``batches``."""
    scan = scan_checked(form, data)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the copy is damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    found = scan.records
    expected = [entry for batch in batches for entry in zip(batch.ids, batch.new, strict=True)]
    if list(zip(found.id_list(), pack_locations(number, found.offsets, found.sizes), strict=True)) != expected:
        raise ValueError("the records of the copy are not those that were written")
    return found
