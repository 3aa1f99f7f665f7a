"""Reconciliation: adapt an index to a directory that it does not fit, and keep the reference counts that the records confirm.

A segment with the size and modification time of its row is not read: its entries are kept, and its other records are dead.
Every other segment is read completely:

===========================  ========================================================================================
entry with its record        The count is kept.
entry without its record     The count is kept if another segment has a record of the id. Otherwise the message is missing.
record without an entry      Dead if it is below the size of the row in a segment that has all its indexed records.
                             Otherwise live, with one reference.
===========================  ========================================================================================

Nothing is committed here: a failed opening leaves the index on disk as it was. The old counts are saved as
``msgstore-counts-N.csv``, lines ``id,count``, a file that ``refcounts=`` and ``--refcounts`` accept.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from itertools import repeat

import attrs

from msgstore.contract import Index
from msgstore.engine.open.broker_counts import BrokerCounts
from msgstore.engine.open.lost_segments import find_copies
from msgstore.engine.open.recovery import count_live, rebuild, scan_segment
from msgstore.engine.open.recovery_plan import LostSegment, ProgressMeter, Recovery, RecoveryPlan, RecoveryProgress
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.checkpoint import Row
from msgstore.locations import pack_location, unpack_location

log = logging.getLogger("msgstore.recovery")

_PREFIX, _SUFFIX = "msgstore-counts-", ".csv"
_LINES = 20_000
"""Lines of a file of counts that are written at once."""


@attrs.define(eq=False)
class _Read:
    """A segment that was read because it differs from its row."""

    segment: Segment
    row: Row | None
    places: dict[tuple[bytes, int], int]
    """Size of each record by (id, offset)."""
    found: int = 0
    """Number of index entries with a record here."""
    gone: dict[bytes, int] = attrs.field(factory=dict)
    """Number of references by id, for index entries without a record here."""

    @property
    def agrees(self) -> bool:
        """True if it has all its indexed records. Damage does not matter."""
        if self.row is None or not self.found:
            return False
        return not self.gone or (self.segment.quarantined and self.found > len(self.gone))


def reconcile(
    segments: Segments,
    index: Index,
    plan: RecoveryPlan,
    why: str,
    recovery: Recovery,
    progress: RecoveryProgress | None,
    *,
    keeps_copy: bool,
) -> None:
    """Adapt the index to the segments. ``keeps_copy``: save the old counts if any of them changes."""
    recovery.how, recovery.distrust = "reconciled", why
    recovery.scanned.clear()
    recovery.damaged.clear()
    before = len(index)
    read = _read_changed(segments, plan, recovery, progress)
    gone = _compare(segments, index, read)
    copies = find_copies(segments, gone, recovery, progress) if gone else {}
    entered, revived = _unknown(index, read, gone)
    if keeps_copy and (gone or entered):
        recovery.copy = save_counts(segments, index)
    index.enter(list(gone), repeat(0, len(gone)))  # with one reference each, and that is released
    index.release(list(gone))
    index.enter(list(copies), copies.values(), [gone[msg_id] for msg_id in copies])
    index.enter(list(entered), entered.values())
    count_live(segments, index)
    recovery.lost += _replaced(read, copies)
    recovery.kept = before - len(gone) + len(copies)
    recovery.revived = revived
    recovery.entered = len(copies) + len(entered)
    recovery.garbage = sum(len(found.places) - found.segment.live_count for found in read.values())
    recovery.missing = len(gone) - len(copies)
    recovery.first_missing = next((msg_id for msg_id in gone if msg_id not in copies), None)
    _tell(segments, recovery)


def rebuild_distrusted(
    segments: Segments,
    index: Index,
    plan: RecoveryPlan | None,
    counts: Mapping[bytes, int] | None,
    recovery: Recovery,
    progress: RecoveryProgress | None,
    broker: BrokerCounts | None,
    *,
    keeps_copy: bool,
) -> None:
    """Rebuild an index whose counts cannot be used, for the reason ``recovery.distrust``, and say what that brings back.

    ``plan``: what the index knew; None if it knew nothing, or nothing that is complete. ``broker``: as in
    :func:`msgstore.engine.open.recovery.rebuild`; if its counts are exact, there is nothing to say."""
    known: set[bytes] = set()
    if plan is not None and plan.rows:
        known = {msg_id for msg_id, _, _ in index.items()}
        if known and keeps_copy:
            recovery.copy = save_counts(segments, index)
    rebuild(segments, index, counts, recovery, progress, broker)
    if recovery.counts == "msg_store_index.ets":  # exact: nothing dead comes back
        recovery.distrust = None
        return
    if plan is not None and plan.rows and counts is None:
        rows = {segment.number: plan.rows.get(segment.path.name) for segment in segments}
        for msg_id, location, _ in index.items():
            number, offset, _ = unpack_location(location)
            row = rows[number]
            recovery.revived += row is not None and offset < row.size and msg_id not in known
    if plan is not None and plan.rows:  # or no counts of ours were lost
        _tell(segments, recovery)


def save_counts(segments: Segments, index: Index) -> str:
    """Save all counts of an index in a new file in the store's directory. Return its name."""
    there = segments.files.list(segments.directory)
    name = next(name for n in itertools.count(1) if (name := f"{_PREFIX}{n}{_SUFFIX}") not in there)
    segments.files.write_file(segments.directory / name, _lines(index), sync=segments.is_durable)
    return name


def _lines(index: Index) -> Iterator[bytes]:
    yield b"id,count\n"
    items = index.items()
    while some := list(itertools.islice(items, _LINES)):
        yield "".join(f"{msg_id.hex()},{references}\n" for msg_id, _, references in some).encode()


def _tell(segments: Segments, recovery: Recovery) -> None:
    where = "" if recovery.copy is None else f" The counts of before are in {segments.directory / recovery.copy}."
    log.warning(
        "%s: the saved counts do not fit the directory: %s. %d messages keep their counts, %d are missing, %d may have "
        "been removed and are live again, %d records were entered.%s",
        segments.directory, recovery.distrust, recovery.kept, recovery.missing, recovery.revived, recovery.entered, where,
    )  # fmt: skip


def _is_as_saved(segment: Segment, row: Row) -> bool:
    return not row.compacting and (segment.size, segment.sealed_mtime_ns) == (row.size, row.mtime_ns)


def _read_changed(
    segments: Segments, plan: RecoveryPlan, recovery: Recovery, progress: RecoveryProgress | None
) -> dict[int, _Read]:
    """By number the segments that are not as they were saved; the others get what their rows say of them. All of them if the
    index is damaged."""
    changed = []
    for segment in segments:
        row = plan.rows.get(segment.path.name)
        if row is None or plan.is_damaged or not _is_as_saved(segment, row):
            changed.append((segment, row))
        else:
            segment.appendable, segment.quarantined = row.appendable, row.quarantined
    meter = ProgressMeter([segment for segment, _ in changed], progress)
    read = {}
    for segment, row in changed:
        segment.quarantined = row is not None and row.quarantined
        scan = scan_segment(segments, segment, 0, recovery)
        if row is not None:
            segment.appendable &= row.appendable
        places = {(i, o): s for columns in (scan.records, scan.duplicates) for i, o, s, _ in columns.rows()}
        read[segment.number] = _Read(segment, row, places)
        meter.add(segment)
    return read


def _compare(segments: Segments, index: Index, read: Mapping[int, _Read]) -> dict[bytes, int]:
    """Return the number of references by id, for index entries whose records are gone."""
    gone: dict[bytes, int] = {}
    for msg_id, location, references in index.items():
        number, offset, size = unpack_location(location)
        if number in read:
            found = read[number]
            if found.places.get((msg_id, offset)) == size:
                found.found += 1
            else:
                found.gone[msg_id] = references
        elif number not in segments.by_number:
            gone[msg_id] = references
    for found in read.values():
        if not found.agrees:
            gone |= found.gone
    return gone


def _unknown(index: Index, read: Mapping[int, _Read], gone: Mapping[bytes, int]) -> tuple[dict[bytes, int], int]:
    """Return the location of each live record that the index does not have, by id, and the number of those that may have been
    removed: they include all records of segments that the index does not know.

    Of several copies the one in the file with the highest number counts, and in one file the first.
    """
    entered: dict[bytes, int] = {}
    back = set()
    for number, found in read.items():
        size = 0 if found.row is None else found.row.size
        here: dict[bytes, int] = {}
        for (msg_id, offset), length in sorted(found.places.items(), key=lambda place: place[0][1]):
            is_new = offset >= size or not found.agrees
            if is_new and msg_id not in here and msg_id not in gone and index.get(msg_id) is None:
                here[msg_id] = pack_location(number, offset, length)
                if offset < size or found.row is None:
                    back.add(msg_id)
        entered |= here
    return entered, len(back)


def _replaced(read: Mapping[int, _Read], copies: Mapping[bytes, int]) -> list[LostSegment]:
    """Segments of the saved size or above that do not hold what the index has in them, and that no other segment holds."""
    found_gone = ((found, sum(msg_id not in copies for msg_id in found.gone)) for found in read.values() if not found.agrees)
    return [
        LostSegment(found.segment.path.name, found.segment.size, found.row.size, gone)
        for found, gone in found_gone
        if gone and found.row is not None and found.segment.size >= found.row.size
    ]
