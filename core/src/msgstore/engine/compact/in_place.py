"""Compaction in place: move records from the end of a segment into its gaps, then truncate the file.

The order keeps every live record readable after a crash at any instant:

1. The index is committed: dead records are dead on disk before their bytes are overwritten.
2. Each gap is prepared: it hides what will be written inside.
3. The records are written into the gaps.
4. Each gap is sealed: the records become visible, as copies of those at the end.
5. The index entries are relocated to the copies and committed.
6. The file is truncated.

Steps 2, 3, 4 and 6 are synced with every durability: a power loss may cost the last writes, but no message that was confirmed
before and is only moved. A segment that is damaged, or in which a live record is missing, is quarantined unchanged.

Plugins are not trusted with the only copy of a message: steps 2 to 4 are first rehearsed in memory, so that a wrong format
leaves the segment untouched, and step 5 checks every entry.

Writers, readers and removers go on; the state lock is taken to relocate some thousand entries at a time. Records that die
meanwhile are moved in vain. ``ReadFiles.epoch`` rises after steps 1 and 5: a location that was looked up before may point to
bytes that are overwritten or truncated next.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgstore.contract import Buffer, CompactableFormat, GapFill, SegmentFormat
from msgstore.contract.formats import Write
from msgstore.engine.compact.compaction_plan import CompactionPlan, Gap, LiveRecords, plan_moves
from msgstore.engine.compact.gc_context import CollectionResult, GcContext, PinnedSegment, Relocation, blamed, relocate
from msgstore.scan.sound import scan_checked


def compact_in_place(context: GcContext, source: PinnedSegment) -> CollectionResult:
    """Compact one pinned segment. Caller holds no lock. Raises InconsistentSegment, StoreIOError."""
    segment = source.segment
    files, form, before = context.segments.files, segment.form.compactable, segment.size
    assert form is not None
    with context.segments.errors(segment), files.view(segment.path) as data:
        live = source.live(context, data)
        with blamed(segment, segment.form, "gap_room"):
            todo = plan_moves(form, live)
        moves = list(todo.moves(live.sizes))
        if todo.end >= before and not moves:
            segment.compacted_live_bytes = live.total
            return CollectionResult(segment.path.name, before, before, outcome="none")
        places = list(live.offsets)
        for position, target in moves:
            places[position] = target
        with blamed(segment, segment.form, "fill_gap"):
            steps = _steps(form, todo, live, data, places)
    _rewrite(context, source, todo, steps, live, moves)
    context.segments.hints.rewrite(segment, live.ids, places, live.sizes)
    with context.state_lock:
        context.accounting.mark_dirty(segment)
    context.commit()
    segment.compacted_live_bytes = live.total
    written = sum(len(chunk) for writes in steps for _, chunk in writes)
    moved = sum(live.sizes[position] for position, _ in moves)
    return CollectionResult(segment.path.name, before, segment.size, len(moves), moved, written)


def _rewrite(
    context: GcContext,
    source: PinnedSegment,
    todo: CompactionPlan,
    steps: Sequence[list[Write]],
    live: LiveRecords,
    moves: Sequence[tuple[int, int]],
) -> None:
    accounting, segments, files, segment = context.accounting, context.segments, context.segments.files, source.segment
    with context.flush_lock:
        segments.hints.drop(segment, lasting=True)
        with context.state_lock:
            time, segment.sealed_mtime_ns, segment.compacting = segment.sealed_mtime_ns, None, True
            accounting.mark_dirty(segment)
        context.commit_locked()
    with context.state_lock:
        segments.read_files.epoch += 1
    with segments.errors(segment):
        fd = files.open_write(segment.path)
        try:
            for writes in steps:
                for offset, chunk in writes:
                    files.pwrite(fd, chunk, offset)
                if writes:
                    files.sync(fd)
            _swap(context, source, live, moves)
            with context.state_lock:
                segments.read_files.epoch += 1
                segments.read_files.unmap(segment.number)  # it is not mapped again as long as it is being compacted
            files.truncate(fd, todo.end)
            files.sync(fd)
        finally:
            try:
                size, mtime_ns = files.size_and_mtime(fd)
                with context.state_lock:
                    segment.size, segment.sealed_mtime_ns, segment.compacting = size, mtime_ns, False
                    accounting.mark_dirty(segment)
            finally:
                files.close(fd)
        if time is not None:  # its age is that of its messages
            _, segment.sealed_mtime_ns = files.set_mtime(segment.path, time)


def _steps(
    form: CompactableFormat, todo: CompactionPlan, live: LiveRecords, data: Buffer, places: Sequence[int]
) -> list[list[Write]]:
    """Return the writes of all gaps by step, after a rehearsal in memory, which takes the size of the compacted segment."""
    steps: list[list[Write]] = [[], [], []]
    offsets, sizes = live.offsets, live.sizes
    image: list[bytes | bytearray] = []
    done = 0
    for gap in todo.gaps:
        records = [data[offsets[at] : offsets[at] + sizes[at]] for at in gap.moved]
        fill = form.fill_gap(gap.offset, gap.size, records)
        image.append(data[done : gap.offset])
        done = gap.offset + gap.size
        image.append(_filled(gap, data[gap.offset : done], fill, records))
        for writes, step in zip(steps, (fill.prepare, fill.inside, fill.seal), strict=True):
            writes += step
    image.append(data[done : todo.end])
    _check(form, b"".join(image)[: todo.end], places)
    return steps


def _filled(gap: Gap, before: bytes, fill: GapFill, records: Sequence[bytes]) -> bytearray:
    """Return the bytes of a gap after all writes of ``fill``. Raises unless the records come first, or for a write outside."""
    image = bytearray(before)
    for writes in (fill.prepare, fill.inside, fill.seal):
        for offset, chunk in writes:
            at, end = offset - gap.offset, offset - gap.offset + len(chunk)
            if at < 0 or end > gap.size:
                raise ValueError(f"{len(chunk)} bytes would be written at offset {offset}, outside of the gap at {gap.offset}")
            image[at:end] = chunk
    if not image.startswith(b"".join(records)):
        raise ValueError(f"the gap at offset {gap.offset} would not hold the records that move into it")
    return image


def _check(form: SegmentFormat, image: bytes, places: Sequence[int]) -> None:
    """Raise unless ``image``, the compacted segment, has a record at each place."""
    scan = scan_checked(form, image)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the segment would be damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    missing = set(places).difference(scan.records.offsets, scan.duplicates.offsets)
    if missing:
        raise ValueError(f"{len(missing)} live records would not be found, one of them at offset {min(missing)}")


def _swap(context: GcContext, source: PinnedSegment, live: LiveRecords, moves: Sequence[tuple[int, int]]) -> None:
    """Relocate the moved records that have not died meanwhile. The row still has the old size. Raises InconsistentSegment."""
    ids = [live.ids[position] for position, _ in moves]
    sizes = [live.sizes[position] for position, _ in moves]
    old = LiveRecords(ids, [live.offsets[position] for position, _ in moves], sizes).locations(source.segment.number)
    new = LiveRecords(ids, [target for _, target in moves], sizes).locations(source.segment.number)
    relocate(context, Relocation(source, source.segment, ids, old, new))
    context.commit()
