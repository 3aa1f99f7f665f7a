"""Reconciliation: adapt an index to a directory that it does not fit, and keep the reference counts that the records confirm.

A segment with the size and modification time of its row is not read: its entries are kept, and its other records are dead.
Every other segment is read completely:

===========================  ========================================================================================
entry with its record        The count is kept.
entry without its record     The count is kept if another segment has a record of the id. Otherwise the message is missing.
record without an entry      Dead if it is below the size of the row in a segment that has all its indexed records.
                             Otherwise live, with one reference.
===========================  ========================================================================================

If segments are lost, and the index fits all others, only shortened segments are read, and no record without an entry is live.

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
from msgstore.engine.open.recovery import RecoveryRun, places
from msgstore.engine.open.recovery_plan import LostSegment, RecoveryPlan
from msgstore.engine.segment.segment import Segment
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
        """True if it has all its indexed records. Damage does not matter, unless the file is shorter than it was."""
        if self.row is None or not self.found:
            return False
        is_whole = self.segment.size >= self.row.size
        return not self.gone or (is_whole and self.segment.quarantined and self.found > len(self.gone))


def repair(run: RecoveryRun, plan: RecoveryPlan) -> None:
    """Remove entries of lost records, or point them to copies in other segments. Counts are kept.

    An id names one body for ever, so any copy will do for a record that is gone: of several the one that a rebuild would take.
    """
    recovery = run.recovery
    recovery.how = "rebuild"
    read = {}
    for name in [found.file for found in plan.lost if found.found is not None]:
        segment = next(segment for segment in run.segments if segment.path.name == name)
        read[segment.number] = _read(run, segment, plan.rows[name])
        segment.quarantined |= segment.torn  # a torn record at its end is damage: it ended with a whole one
    gone = _compare(run, read)
    recovery.entered += len(_replace(run, gone, {}))


def reconcile(run: RecoveryRun, plan: RecoveryPlan, why: str) -> None:
    """Adapt the index to the segments."""
    index, recovery = run.index, run.recovery
    recovery.how, recovery.distrust = "reconciled", why
    recovery.scanned.clear()
    recovery.damaged.clear()
    before = len(index)
    read = _read_changed(run, plan)
    gone = _compare(run, read)
    entered, recovery.revived = _unknown(index, read, gone)
    if run.keeps_copy and (gone or entered):
        recovery.copy = save_counts(run)
    copies = _replace(run, gone, entered)
    recovery.lost += _replaced(read, copies)
    recovery.kept = before - len(gone) + len(copies)
    recovery.entered = len(copies) + len(entered)
    recovery.garbage = sum(len(found.places) - found.segment.live_count for found in read.values())
    report_distrust(run)


def save_counts(run: RecoveryRun) -> str:
    """Save all counts of the index in a new file in the store's directory. Return its name."""
    segments = run.segments
    there = segments.files.list(segments.directory)
    name = next(name for n in itertools.count(1) if (name := f"{_PREFIX}{n}{_SUFFIX}") not in there)
    segments.files.write_file(segments.directory / name, _lines(run.index), sync=segments.is_durable)
    return name


def _lines(index: Index) -> Iterator[bytes]:
    yield b"id,count\n"
    items = index.items()
    while some := list(itertools.islice(items, _LINES)):
        yield "".join(f"{msg_id.hex()},{references}\n" for msg_id, _, references in some).encode()


def report_distrust(run: RecoveryRun) -> None:
    """Log why the saved counts were not taken as they were, and what became of them."""
    recovery, directory = run.recovery, run.segments.directory
    where = "" if recovery.copy is None else f" The counts of before are in {directory / recovery.copy}."
    log.warning(
        "%s: the saved counts do not fit the directory: %s. %d messages keep their counts, %d are missing, %d may have "
        "been removed and are live again, %d records were entered.%s",
        directory, recovery.distrust, recovery.kept, recovery.missing, recovery.revived, recovery.entered, where,
    )  # fmt: skip


def _read_changed(run: RecoveryRun, plan: RecoveryPlan) -> dict[int, _Read]:
    """By number the segments that are not as they were saved; the others get what their rows say of them. All of them if the
    index is damaged."""
    changed = []
    for segment in run.segments:
        row = plan.rows.get(segment.path.name)
        segment.quarantined = row is not None and row.quarantined
        if row is None or plan.is_damaged or not _is_as_saved(segment, row):
            changed.append(segment)
        else:
            segment.appendable = row.appendable
    read = {}
    for segment in run.metered(changed):
        row = plan.rows.get(segment.path.name)
        read[segment.number] = _read(run, segment, row)
        if row is not None:
            segment.appendable &= row.appendable
    return read


def _is_as_saved(segment: Segment, row: Row) -> bool:
    return not row.compacting and (segment.size, segment.sealed_mtime_ns) == (row.size, row.mtime_ns)


def _read(run: RecoveryRun, segment: Segment, row: Row | None) -> _Read:
    return _Read(segment, row, {(msg_id, offset): size for msg_id, offset, size in places(run.scan(segment))})


def _compare(run: RecoveryRun, read: Mapping[int, _Read]) -> dict[bytes, int]:
    """Return the number of references by id, for index entries whose records are gone."""
    gone: dict[bytes, int] = {}
    for msg_id, location, references in run.index.items():
        number, offset, size = unpack_location(location)
        if number in read:
            found = read[number]
            if found.places.get((msg_id, offset)) == size:
                found.found += 1
            else:
                found.gone[msg_id] = references
        elif number not in run.segments.by_number:
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


def _replace(run: RecoveryRun, gone: Mapping[bytes, int], entered: Mapping[bytes, int]) -> dict[bytes, int]:
    """Remove entries of ``gone`` records, or point them to copies. Enter the others. Return the location of each copy."""
    index, recovery = run.index, run.recovery
    copies = _find_copies(run, gone) if gone else {}
    index.enter(list(gone), repeat(0, len(gone)))  # with one reference each, and that is released
    index.release(list(gone))
    index.enter(list(copies), copies.values(), [gone[msg_id] for msg_id in copies])
    index.enter(list(entered), entered.values())
    run.count_live()
    recovery.missing = len(gone) - len(copies)
    recovery.first_missing = next((msg_id for msg_id in gone if msg_id not in copies), None)
    return copies


def _find_copies(run: RecoveryRun, wanted: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return the location of another record of each id, if a segment has one. Damage is not reported here."""
    copies: dict[bytes, int] = {}
    segments, scanned = run.segments, run.recovery.scanned
    for segment in run.metered(segments):
        with segments.errors(segment), segments.files.view(segment.path) as data:
            scan = segment.form.scan(data)
        found: dict[bytes, int] = {}
        for msg_id, offset, size in places(scan):
            if msg_id in wanted:
                found.setdefault(msg_id, pack_location(segment.number, offset, size))
        copies |= found
        if segment.path.name not in scanned:
            scanned.append(segment.path.name)
    return copies


def _replaced(read: Mapping[int, _Read], copies: Mapping[bytes, int]) -> list[LostSegment]:
    """Segments of the saved size or above that do not hold what the index has in them, and that no other segment holds."""
    found_gone = ((found, sum(msg_id not in copies for msg_id in found.gone)) for found in read.values() if not found.agrees)
    return [
        LostSegment(found.segment.path.name, found.segment.size, found.row.size, gone)
        for found, gone in found_gone
        if gone and found.row is not None and found.segment.size >= found.row.size
    ]
