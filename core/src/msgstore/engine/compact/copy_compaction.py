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

from msgstore.contract import Buffer, RecordError, StoreIOError
from msgstore.contract.events import CollectionOutcome
from msgstore.directory import TEMP_SUFFIX
from msgstore.engine.compact.compaction_plan import LiveRecords
from msgstore.engine.compact.gc_context import CollectionResult, GcContext
from msgstore.engine.compact.pinning import InconsistentSegment, PinnedSegment, blamed, still_alive, swap
from msgstore.engine.compact.rehearsal import check_copy, check_encoded
from msgstore.engine.segment.erasing import remove
from msgstore.engine.segment.hint_file import Hint
from msgstore.engine.segment.segment import Segment
from msgstore.locations import MASK

_AT_ONCE = 2**20
"""Bytes that are copied with one write, and whose entries are relocated under one hold of the state lock."""


@attrs.frozen
class _Batch:
    """Records of one source that were copied into one segment with one write."""

    source: PinnedSegment
    copy: Segment
    ids: Sequence[bytes]
    old: list[int]
    new: list[int]

    @property
    def written(self) -> int:
        return sum(location & MASK for location in self.new)


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
            with context.state_lock:
                _swap(context, batch)
    finally:
        copying.release()
    context.commit()
    return [
        CollectionResult(
            source.name, source.segment.size, 0, records, size,
            sum(batch.written for batch in copying.batches if batch.source is source), outcome=outcome,
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
        self._hints: list[tuple[bytearray, array[int]]] = []
        self.copies: list[Segment] = []
        self.batches: list[_Batch] = []

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
                    check_encoded(self._form.format, live.ids, bodies, encoded, sizes)
                elif list(sizes) != list(live.sizes):
                    raise ValueError("the sizes are not those of the records")
        if self._fd is None or self.copies[-1].size >= self._context.size_limit:
            self._begin()
        assert self._fd is not None
        copy = self.copies[-1]
        with self._context.segments.errors(copy, copy.size):
            self._files.pwrite(self._fd, encoded, copy.size)
        places = LiveRecords(live.ids, list(accumulate(sizes[:-1], initial=copy.size)), sizes)
        old, new = live.locations(source.segment.number), places.locations(copy.number)
        self.batches.append(_Batch(source, copy, live.ids, old, new))
        self._hints[-1][0].extend(b"".join(live.ids))
        self._hints[-1][1].extend(sizes)
        copy.size += len(encoded)

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

    def _begin(self) -> None:
        self._end()
        with self._context.flush_lock:
            number = self._context.segments.reserve()
        path = unnamed(self._context.segments.directory / f"{number}{self._form.descriptor.extension}")
        copy = Segment(number, path, self._form, len(self._form.format.header))
        with self._context.segments.errors(copy):
            self._files.unlink(path)  # left by a crash
            self._fd = self._files.create(path)
            self.copies.append(copy)
            self._hints.append((bytearray(), array("Q")))
            self._files.pwrite(self._fd, self._form.format.header, 0)

    def _end(self) -> None:
        """Sync and close the last copy, with any durability: its records were confirmed long ago."""
        fd, self._fd = self._fd, None
        if fd is not None:
            copy = self.copies[-1]
            with self._context.segments.errors(copy):
                try:
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)

    def finish(self, times: Sequence[int | None]) -> None:
        """Complete and check the copies. Each gets the modification time of the youngest source."""
        self._end()
        self._check()
        youngest = max((time for time in times if time is not None), default=0)
        for copy in self.copies:
            with self._context.segments.errors(copy):
                _, copy.sealed_mtime_ns = self._files.set_mtime(copy.path, youngest)

    def _check(self) -> None:
        """Read the copies back before the sources are deleted. Raises InconsistentSegment."""
        for copy, (ids, sizes) in zip(self.copies, self._hints, strict=True):
            source = next(batch.source for batch in self.batches if batch.copy is copy)
            errors, view = self._context.segments.errors(copy), self._files.view(copy.path)
            with errors, view as data, blamed(source.segment, self._form, "scan"):
                check_copy(self._form.format, data, ids, copy.header_bytes, sizes)

    def hints(self) -> Iterator[tuple[Segment, Hint]]:
        """Yield each copy with its hint."""
        for copy, (ids, sizes) in zip(self.copies, self._hints, strict=True):
            yield copy, Hint.of_run(ids, copy.header_bytes, sizes)

    def release(self) -> None:
        """Unpin the copies. Queue those without live records for deletion."""
        with self._context.state_lock:
            for copy in self.copies:
                copy.died_since_pin = None
                if not copy.live_count:
                    self._context.accounting.queue_deletion(copy)

    def discard(self) -> None:
        """Delete the copies after a failure. The rest is deleted by the next opening, or with the empty segments."""
        with contextlib.suppress(StoreIOError):
            self._end()
        for copy in self.copies:
            with contextlib.suppress(OSError):
                remove(self._files, unnamed(copy.path), erase=self._context.segments.erase)
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
        for copy in copying.copies:
            copy.path = copy.path.with_name(copy.path.name.removesuffix(TEMP_SUFFIX))
            copy.died_since_pin = set()  # pinned: it must not be deleted between two batches
            segments.by_number[copy.number] = copy
            context.accounting.mark_dirty(copy)
    context.commit()
    for copy in copying.copies:
        with segments.errors(copy):
            files.replace(unnamed(copy.path), copy.path)
    segments.sync_directory()
    for copy, hint in copying.hints():
        segments.hints.found(copy, hint)


def _swap(context: GcContext, batch: _Batch) -> None:
    """Relocate records that have not died since the pin. Caller holds the state lock. Raises InconsistentSegment."""
    ids, old, new = still_alive(batch.source, batch.ids, batch.old, batch.new)
    swap(context, batch.source.segment, ids, old, new)
    _account(context, batch.source.segment, -1, old)
    _account(context, batch.copy, 1, new)


def _account(context: GcContext, segment: Segment, sign: int, locations: Sequence[int]) -> None:
    segment.live_count += sign * len(locations)
    segment.live_bytes += sign * sum(location & MASK for location in locations)
    context.accounting.mark_dirty(segment)
