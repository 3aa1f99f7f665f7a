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

from msgstore.contract import Buffer, CompactableFormat
from msgstore.contract.formats import Write
from msgstore.engine.compact.compaction_plan import CompactionPlan, LiveRecords, plan_moves
from msgstore.engine.compact.gc_context import CollectionResult, GcContext, PinnedSegment, Relocation, blamed, relocate
from msgstore.locations import pack_location
from msgstore.scan.formats import scan_checked


def compact_in_place(context: GcContext, source: PinnedSegment) -> CollectionResult:
    """Compact one pinned segment. Caller holds no lock. Raises InconsistentSegment, StoreIOError."""
    segment, segments = source.segment, context.segments
    form, before = segment.form.compactable, segment.size
    assert form is not None
    with segments.errors(segment), segments.files.view(segment.path) as data:
        live = source.live(context, data)
        with blamed(segment, segment.form, "gap_room"):
            todo = plan_moves(form, live)
        moves = dict(todo.moves(live.sizes))
        if todo.end >= before and not moves:
            segment.compacted_live_bytes = sum(live.sizes)
            return CollectionResult(segment.path.name, before, before, outcome="none")
        places = [moves.get(position, offset) for position, offset in enumerate(live.offsets)]
        with blamed(segment, segment.form, "fill_gap"):
            steps = _rehearse(form, todo, live, data, places)
    number, sizes = segment.number, live.sizes
    moved = Relocation(
        source,
        segment,
        [live.ids[at] for at in moves],
        [pack_location(number, live.offsets[at], sizes[at]) for at in moves],
        [pack_location(number, target, sizes[at]) for at, target in moves.items()],
    )
    _rewrite(context, moved, steps, todo.end)
    segments.hints.rewrite(segment, live.ids, places, sizes)
    with context.accounting.state_lock:
        context.accounting.mark_dirty(segment)
    context.commit()
    segment.compacted_live_bytes = sum(sizes)
    written = sum(len(chunk) for writes in steps for _, chunk in writes)
    return CollectionResult(segment.path.name, before, segment.size, len(moves), sum(sizes[at] for at in moves), written)


def _rewrite(context: GcContext, moved: Relocation, steps: Sequence[list[Write]], end: int) -> None:
    accounting, segments, files, segment = context.accounting, context.segments, context.segments.files, moved.target
    with accounting.flush_lock:
        segments.hints.drop(segment, lasting=True)
        with accounting.state_lock:
            time, segment.sealed_mtime_ns, segment.compacting = segment.sealed_mtime_ns, None, True
            accounting.mark_dirty(segment)
        context.commit_locked()
    with accounting.state_lock:
        segments.read_files.epoch += 1
    with segments.errors(segment):
        fd = files.open_write(segment.path)
        try:
            for writes in steps:
                for offset, chunk in writes:
                    files.pwrite(fd, chunk, offset)
                if writes:
                    files.sync(fd)
            relocate(context, moved)
            context.commit()  # with the old size in the row
            with accounting.state_lock:
                segments.read_files.epoch += 1
                segments.read_files.unmap(segment.number)  # it is not mapped again as long as it is being compacted
            files.truncate(fd, end)
            files.sync(fd)
        finally:
            try:
                size, mtime_ns = files.size_and_mtime(fd)
                with accounting.state_lock:
                    segment.size, segment.sealed_mtime_ns, segment.compacting = size, mtime_ns, False
                    accounting.mark_dirty(segment)
            finally:
                files.close(fd)
        if time is not None:  # its age is that of its messages
            _, segment.sealed_mtime_ns = files.set_mtime(segment.path, time)


def _rehearse(
    form: CompactableFormat, todo: CompactionPlan, live: LiveRecords, data: Buffer, places: Sequence[int]
) -> list[list[Write]]:
    """Return the writes of all gaps by step, after a rehearsal in memory, which takes the size of the compacted segment.

    Raises ValueError for a write outside of its gap, or unless the result is a segment with a record at each place, and the
    moved records first in their gaps.
    """
    steps: list[list[Write]] = [[], [], []]
    image: list[bytes | bytearray] = []
    done = 0
    for gap in todo.gaps:
        records = [data[live.offsets[at] : live.offsets[at] + live.sizes[at]] for at in gap.moved]
        fill = form.fill_gap(gap.offset, gap.size, records)
        image.append(data[done : gap.offset])
        done = gap.offset + gap.size
        filled = bytearray(data[gap.offset : done])
        for step, writes in zip(steps, (fill.prepare, fill.inside, fill.seal), strict=True):
            for offset, chunk in writes:
                if offset < gap.offset or offset + len(chunk) > done:
                    where = f"at offset {offset}, outside of the gap at {gap.offset}"
                    raise ValueError(f"{len(chunk)} bytes would be written {where}")
                filled[offset - gap.offset : offset - gap.offset + len(chunk)] = chunk
            step += writes
        if not filled.startswith(b"".join(records)):
            raise ValueError(f"the gap at offset {gap.offset} would not hold the records that move into it")
        image.append(filled)
    image.append(data[done : todo.end])
    scan = scan_checked(form, b"".join(image)[: todo.end])
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the segment would be damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    missing = set(places).difference(scan.records.offsets, scan.duplicates.offsets)
    if missing:
        raise ValueError(f"{len(missing)} live records would not be found, one of them at offset {min(missing)}")
    return steps
