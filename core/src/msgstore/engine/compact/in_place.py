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

import attrs

from msgstore.contract import Buffer, CompactableFormat
from msgstore.contract.formats import Write
from msgstore.engine.compact.gc_context import (
    CollectionResult,
    GcContext,
    LiveRecords,
    PinnedSegment,
    Relocation,
    blamed,
    relocate,
)
from msgstore.locations import pack_locations
from msgstore.scan.formats import scan_checked

MAX_SIZE = 1.25
"""Largest size of a segment after a compaction in place, in sizes of its live records. A larger one is copied."""


@attrs.define
class MovePlan:
    """Places of the records after a compaction. Pure data."""

    places: list[int]
    """New offset of each live record; its old one if it stays."""
    gaps: list[tuple[int, int, list[int]]]
    """(offset, size, positions of the live records that move into it, in order) of each gap before ``end``."""
    end: int
    """Size of the compacted segment."""


def plan_moves(form: CompactableFormat, live: LiveRecords) -> MovePlan:
    """Return the plan for all live records of a segment. Raises ValueError for an impossible result of ``gap_room``.

    Records from the end of the segment move into the first gap with room, so that the tail becomes free. Best fit would fill
    gaps near the end, where the cut is wanted.
    """
    begin, offsets, sizes = len(form.header), live.offsets, live.sizes
    starts = [begin, *map(int.__add__, offsets, sizes)]
    gaps: list[tuple[int, int, list[int]]] = [
        (start, offset - start, []) for start, offset in zip(starts, offsets, strict=False) if offset > start
    ]
    rooms = [form.gap_room(offset, size) for offset, size, _ in gaps]
    for (offset, size, _), room in zip(gaps, rooms, strict=True):
        if not 0 <= room <= size:
            raise ValueError(f"a gap of {size} bytes at offset {offset} has room for {room}")
    places, end = list(offsets), begin  # of the moved records: the file is not truncated before it, so earlier records stay
    tree, leaves = _tree_of_maxima(rooms)
    staying = len(live)
    while staying and offsets[staying - 1] >= end:
        size = sizes[staying - 1]
        gap = _first_with_room(tree, leaves, size)
        if gap is None or gaps[gap][0] >= offsets[staying - 1]:
            break
        offset, room = gaps[gap][0] + rooms[gap], tree[leaves + gap]
        while staying and sizes[staying - 1] == size <= room and offsets[staying - 1] >= end:  # it is the first for these, too
            staying -= 1
            gaps[gap][2].append(staying)
            places[staying] = offset - room
            room -= size
            end = max(end, offset - room)
        _set_room(tree, leaves + gap, room)
    if staying:
        end = max(end, starts[staying])
    return MovePlan(places, [gap for gap in gaps if gap[0] < end], end)


def _tree_of_maxima(rooms: Sequence[int]) -> tuple[list[int], int]:
    """Return a tree with its root at 1, those below ``n`` at ``2n`` and ``2n + 1``, and the position of the first leaf."""
    leaves = 1 << max(len(rooms) - 1, 0).bit_length()
    tree = [0] * leaves + [*rooms, *[0] * (leaves - len(rooms))]
    for at in range(leaves - 1, 0, -1):
        tree[at] = max(tree[2 * at], tree[2 * at + 1])
    return tree, leaves


def _first_with_room(tree: list[int], leaves: int, size: int) -> int | None:
    """Return the number of the first room of at least ``size`` bytes. Some 15 steps."""
    if tree[1] < size:
        return None
    at = 1
    while at < leaves:
        at = 2 * at if tree[2 * at] >= size else 2 * at + 1
    return at - leaves


def _set_room(tree: list[int], at: int, room: int) -> None:
    """Change a leaf, and the maxima above it."""
    tree[at] = room
    while at > 1:
        left, right = tree[at], tree[at ^ 1]
        larger = max(right, left)  # max() would take a third of the time of a plan
        at //= 2
        if tree[at] == larger:
            break
        tree[at] = larger


def compact_in_place(context: GcContext, source: PinnedSegment, max_size: float = MAX_SIZE) -> CollectionResult | None:
    """Compact one pinned segment. Caller holds no lock. Raises InconsistentSegment, StoreIOError.

    Returns None and changes nothing if the segment would stay larger than ``max_size`` times its live records.
    """
    segment, segments = source.segment, context.segments
    form, before = segment.form.compactable, segment.size
    assert form is not None
    with segments.errors(segment), segments.files.view(segment.path) as data:
        live = source.live(context, data)
        with blamed(segment, segment.form, "gap_room"):
            plan = plan_moves(form, live)
        if plan.end - len(form.header) > max_size * sum(live.sizes):
            return None
        moves = [at for at, place in enumerate(plan.places) if place != live.offsets[at]]
        if plan.end >= before and not moves:
            segment.compacted_live_bytes = sum(live.sizes)
            return CollectionResult(segment.path.name, before, before, outcome="none")
        with blamed(segment, segment.form, "fill_gap"):
            steps = _rehearse(form, plan, live, data)
    ids, sizes = [live.ids[at] for at in moves], [live.sizes[at] for at in moves]
    old = pack_locations(segment.number, [live.offsets[at] for at in moves], sizes)
    new = pack_locations(segment.number, [plan.places[at] for at in moves], sizes)
    _rewrite(context, Relocation(source, segment, ids, old, new), steps, plan.end)
    segments.hints.rewrite(segment, live.ids, plan.places, live.sizes)
    with context.accounting.state_lock:
        context.accounting.mark_dirty(segment)
    context.commit()
    segment.compacted_live_bytes = sum(live.sizes)
    written = sum(len(chunk) for writes in steps for _, chunk in writes)
    return CollectionResult(segment.path.name, before, segment.size, len(moves), sum(sizes), written)


def _rewrite(context: GcContext, moved: Relocation, steps: Sequence[list[Write]], end: int) -> None:
    accounting, segments, files, segment = context.accounting, context.segments, context.segments.files, moved.target
    with segments.errors(segment):
        fd = files.open_write(segment.path)
        time = segment.sealed_mtime_ns
        try:
            with accounting.flush_lock:
                segments.hints.drop(segment, lasting=True)
                with accounting.state_lock:
                    segment.sealed_mtime_ns, segment.compacting = None, True
                    accounting.mark_dirty(segment)
            context.commit()
            with accounting.state_lock:
                segments.read_files.epoch += 1
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


def _rehearse(form: CompactableFormat, plan: MovePlan, live: LiveRecords, data: Buffer) -> list[list[Write]]:
    """Return the writes of all gaps by step, after a rehearsal in memory, which takes the size of the compacted segment.

    Raises ValueError for a write outside of its gap, or unless the result is a segment with a record at each place, and the
    moved records first in their gaps.
    """
    steps: list[list[Write]] = [[], [], []]
    image: list[bytes | bytearray] = []
    done = 0
    for begin, size, moved in plan.gaps:
        records = [data[live.offsets[at] : live.offsets[at] + live.sizes[at]] for at in moved]
        fill = form.fill_gap(begin, size, records)
        image.append(data[done:begin])
        done = begin + size
        filled = bytearray(data[begin:done])
        for step, writes in zip(steps, (fill.prepare, fill.inside, fill.seal), strict=True):
            for offset, chunk in writes:
                if offset < begin or offset + len(chunk) > done:
                    raise ValueError(f"{len(chunk)} bytes would be written at offset {offset}, outside of the gap at {begin}")
                filled[offset - begin : offset - begin + len(chunk)] = chunk
            step += writes
        if not filled.startswith(b"".join(records)):
            raise ValueError(f"the gap at offset {begin} would not hold the records that move into it")
        image.append(filled)
    image.append(data[done : plan.end])
    scan = scan_checked(form, b"".join(image)[: plan.end])
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the segment would be damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    missing = set(plan.places).difference(scan.records.offsets, scan.duplicates.offsets)
    if missing:
        raise ValueError(f"{len(missing)} live records would not be found, one of them at offset {min(missing)}")
    return steps
