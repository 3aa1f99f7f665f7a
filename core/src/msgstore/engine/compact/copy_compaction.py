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
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import attrs

from msgstore.contract import Buffer, RecordError, SegmentFormat, StoreIOError
from msgstore.contract.events import CollectionOutcome
from msgstore.directory import TEMP_SUFFIX
from msgstore.engine.compact.compaction_plan import LiveRecords
from msgstore.engine.compact.gc_context import (
    CollectionResult,
    GcContext,
    InconsistentSegment,
    PinnedSegment,
    Relocation,
    blamed,
    relocate,
)
from msgstore.engine.segment.segment import Segment, remove_file
from msgstore.locations import MASK
from msgstore.scan.sound import scan_checked

_AT_ONCE = 2**20
"""Bytes that are copied with one write."""


@attrs.frozen
class _Copy:
    """A new segment, and the columns of its records. ``first`` is the source of the first ones."""

    segment: Segment
    first: PinnedSegment
    ids: bytearray = attrs.field(factory=bytearray)
    sizes: array[int] = attrs.field(factory=lambda: array("Q"))


def compact_by_copy(context: GcContext, sources: Sequence[PinnedSegment], outcome: CollectionOutcome) -> list[CollectionResult]:
    """Copy the live records of pinned segments, in this order, and leave the segments empty. Caller holds no lock.

    Raises InconsistentSegment, StoreIOError: a part may be done then, and a later collection can do the rest.
    """
    copying = _CopyWriter(context)
    moved = []
    try:
        for source in sources:
            with context.segments.errors(source.segment), context.segments.files.view(source.segment.path) as data:
                live = source.live(context, data)
                for records in _batches(live, context.size_limit):
                    copying.add(source, records, data)
            moved.append((len(live), live.total))
        copying.finish([source.segment.sealed_mtime_ns for source in sources])
        _publish(context, copying)
    except BaseException:
        copying.discard()
        raise
    try:
        for batch in copying.batches:
            relocate(context, batch)
    finally:
        copying.release()
    context.commit()
    return [
        CollectionResult(
            source.segment.path.name, source.segment.size, 0, records, size,
            sum(location & MASK for batch in copying.batches if batch.source is source for location in batch.new),
            outcome=outcome,
        )
        for source, (records, size) in zip(sources, moved, strict=True)
    ]  # fmt: skip


def unnamed(path: Path) -> Path:
    """Return the temporary name of a copy."""
    return path if path.suffix == TEMP_SUFFIX else path.with_name(path.name + TEMP_SUFFIX)


class _CopyWriter:
    """Writes copies while they have temporary names."""

    def __init__(self, context: GcContext) -> None:
        self._context = context
        self._files = context.segments.files
        self._form = context.form
        self._fd: int | None = None
        self.copies: list[_Copy] = []
        self.batches: list[Relocation] = []

    def add(self, source: PinnedSegment, live: LiveRecords, data: Buffer) -> None:
        """Append copies of records. They are not synced yet."""
        records = [data[offset : offset + size] for offset, size in zip(live.offsets, live.sizes, strict=True)]
        bodies = self._stored(source, live, records)
        unchanged = b"".join(records) if source.segment.form.name == self._form.name else None
        if self._form.verbatim and unchanged is not None:
            encoded, sizes = unchanged, list(live.sizes)
        else:
            with blamed(source.segment, self._form, "encode"):
                encoded, sizes = self._form.format.encode(live.ids, bodies)
                if encoded != unchanged:
                    _check_encoded(self._form.format, live.ids, bodies, encoded, sizes)
                elif list(sizes) != list(live.sizes):
                    raise ValueError("the sizes are not those of the records")
        if self._fd is None or self.copies[-1].segment.size >= self._context.size_limit:
            self._begin(source)
        assert self._fd is not None
        copy, segment = self.copies[-1], self.copies[-1].segment
        with self._context.segments.errors(segment, segment.size):
            self._files.pwrite(self._fd, encoded, segment.size)
        places = LiveRecords(live.ids, list(accumulate(sizes[:-1], initial=segment.size)), sizes)
        old, new = live.locations(source.segment.number), places.locations(segment.number)
        self.batches.append(Relocation(source, segment, live.ids, old, new))
        copy.ids.extend(b"".join(live.ids))
        copy.sizes.extend(sizes)
        segment.size += len(encoded)

    def _stored(self, source: PinnedSegment, live: LiveRecords, records: Sequence[bytes]) -> list[bytes]:
        """Return the stored bodies of records. Raises InconsistentSegment."""
        decode = source.segment.form.format.decode
        bodies: list[bytes] = []
        damage: RecordError | None = None
        with blamed(source.segment, source.segment.form, "decode"):
            try:
                bodies.extend(map(decode, live.ids, records))
            except RecordError as error:
                damage = error
            if not set(map(type, bodies)) <= {bytes}:
                raise TypeError("a body is not bytes")
        if damage is not None:
            offset = live.offsets[len(bodies)]
            raise InconsistentSegment(source.segment, f"the record at offset {offset} is damaged ({damage})") from damage
        if max(map(len, bodies)) > self._form.format.max_body:
            offset = next(o for o, body in zip(live.offsets, bodies, strict=True) if len(body) > self._form.format.max_body)
            reason = f"the body at offset {offset} is too large for format {self._form.name!r}"
            raise InconsistentSegment(source.segment, reason, damaged=False)
        return bodies

    def _begin(self, source: PinnedSegment) -> None:
        self._end()
        with self._context.flush_lock:
            number = self._context.segments.reserve()
        path = unnamed(self._context.segments.directory / f"{number}{self._form.descriptor.extension}")
        copy = Segment(number, path, self._form, len(self._form.format.header))
        with self._context.segments.errors(copy):
            self._files.unlink(path)  # left by a crash
            self._fd = self._files.create(path)
            self.copies.append(_Copy(copy, source))
            self._files.pwrite(self._fd, self._form.format.header, 0)

    def _end(self) -> None:
        """Sync and close the last copy, with any durability: its records were confirmed long ago."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with self._context.segments.errors(self.copies[-1].segment), self._files.closing(fd):
                self._files.sync(fd)

    def finish(self, times: Sequence[int | None]) -> None:
        """Complete the copies, and read them back before the sources are deleted. Each gets the modification time of the
        youngest source. Raises InconsistentSegment, StoreIOError."""
        self._end()
        youngest = max((time for time in times if time is not None), default=0)
        for copy in self.copies:
            segment = copy.segment
            with self._context.segments.errors(segment):
                with self._files.view(segment.path) as data, blamed(copy.first.segment, self._form, "scan"):
                    _check_copy(self._form.format, data, copy.ids, segment.header_bytes, copy.sizes)
                _, segment.sealed_mtime_ns = self._files.set_mtime(segment.path, youngest)

    def release(self) -> None:
        """Unpin the copies. Queue those without live records for deletion."""
        with self._context.state_lock:
            for copy in self.copies:
                copy.segment.died_since_pin = None
                if not copy.segment.live_count:
                    self._context.accounting.queue_deletion(copy.segment)

    def discard(self) -> None:
        """Delete the copies after a failure. The rest is deleted by the next opening, or with the empty segments."""
        with contextlib.suppress(StoreIOError):
            self._end()
        for copy in (copy.segment for copy in self.copies):
            with contextlib.suppress(OSError):
                remove_file(self._files, unnamed(copy.path), erase=self._context.segments.erase)
            if copy.is_published:
                with self._context.state_lock:
                    copy.died_since_pin = None
                    self._context.accounting.queue_deletion(copy)


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


def _publish(context: GcContext, copying: _CopyWriter) -> None:
    """Commit rows for the copies, and give them their final names: steps 2 and 3."""
    segments, files = context.segments, context.segments.files
    with context.state_lock:
        for segment in (copy.segment for copy in copying.copies):
            segment.path = segment.path.with_name(segment.path.name.removesuffix(TEMP_SUFFIX))
            segment.died_since_pin = set()  # pinned: it must not be deleted between two batches
            segments.by_number[segment.number] = segment
            context.accounting.mark_dirty(segment)
    context.commit()
    for segment in (copy.segment for copy in copying.copies):
        with segments.errors(segment):
            files.replace(unnamed(segment.path), segment.path)
    segments.sync_directory()
    for copy in copying.copies:
        segments.hints.found(copy.segment, (copy.ids, copy.segment.header_bytes, copy.sizes))


def _check_encoded(
    form: SegmentFormat, ids: Sequence[bytes], bodies: Sequence[bytes], encoded: bytes, sizes: Sequence[int]
) -> None:
    """Raise unless ``encoded`` has one record of each of ``bodies``, with these sizes."""
    if not isinstance(encoded, bytes) or not set(map(type, sizes)) <= {int}:
        raise TypeError("it gives no bytes with sizes")
    if len(sizes) != len(ids) or sum(sizes) != len(encoded) or min(sizes) < 1:
        raise ValueError(
            f"it gives {len(sizes)} records of {sum(sizes)} bytes for {len(ids)} messages, in {len(encoded)} bytes"
        )
    begins = accumulate(sizes, initial=0)
    records = [encoded[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
    if list(map(form.decode, ids, records)) != bodies:
        raise ValueError("a record has another body than it was made of")


def _check_copy(form: SegmentFormat, data: Buffer, ids: bytes | bytearray, begin: int, sizes: array[int]) -> None:
    """Raise unless ``data`` is a segment of exactly these records, without gaps, from ``begin`` on."""
    scan = scan_checked(form, data)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the copy is damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    found, places = scan.records, array("Q", accumulate(sizes, initial=begin))
    places.pop()
    columns = (found.sizes, sizes), (found.offsets, places)
    if found.ids != ids or any(array("Q", one).tobytes() != other.tobytes() for one, other in columns):
        raise ValueError("the records of the copy are not those that were written")
