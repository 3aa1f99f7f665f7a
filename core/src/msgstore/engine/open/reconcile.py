"""Reconciliation: adapt an index to a directory that it does not fit, and keep the reference counts that the records confirm.

A segment with the size and modification time of its row is not read: its entries are kept, and its other records are dead.
Every other segment is read completely:

===========================  ========================================================================================
entry with its record        The count is kept.
entry without its record     The count is kept if another segment has a record of the id. Otherwise the message is missing.
record without an entry      Dead if it is below the size of the row in a segment that has all its indexed records.
                             Otherwise live, with one reference.
===========================  ========================================================================================

If segments are lost, and the index fits all others, no record below the size of its row comes back.

Nothing is committed here: a failed opening leaves the index on disk as it was. The old counts are saved as
``msgstore-counts-N.csv``, lines ``id,count``, a file that ``refcounts=`` and ``--refcounts`` accept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import attrs

from msgstore.contract import Index
from msgstore.engine.open.recovery_plan import LostSegment, RecoveryPlan, RecoveryRun, places
from msgstore.engine.segment.segment import Segment
from msgstore.engine.state.checkpoint import Row
from msgstore.locations import pack_location, unpack_location

_LINES = 20_000
"""Lines of a file of counts that are written at once."""


@attrs.define(eq=False)
class _Changed:
    """A segment that was read because it differs from its row."""

    segment: Segment
    row: Row | None
    sizes: dict[tuple[bytes, int], int]
    """Size of each record by (id, offset)."""
    found: int = 0
    """Number of index entries with a record here."""
    gone: dict[bytes, int] = attrs.field(factory=dict)
    """Number of references by id, for index entries without a record here."""

    @property
    def is_shortened(self) -> bool:
        return self.row is not None and self.segment.size < self.row.size

    @property
    def agrees(self) -> bool:
        """True if it has all its indexed records. Damage does not matter, unless the file is shorter than it was."""
        if self.row is None or not self.found:
            return False
        return not self.gone or (not self.is_shortened and self.segment.quarantined and self.found > len(self.gone))


def reconcile(run: RecoveryRun, plan: RecoveryPlan, refusal: str | None) -> None:
    """Adapt the index to the segments. Without ``refusal`` it fits all segments but those that are lost."""
    index, recovery = run.index, run.recovery
    recovery.how, recovery.distrust = "reconciled", refusal or "segments are missing or shortened"
    before = len(index)
    if refusal is not None:
        recovery.scanned.clear()
        recovery.damaged.clear()
    read = _read_changed(run, plan, is_fitting=refusal is None)
    gone = _find_gone(run, read)
    entered, recovery.revived = _find_new(index, read, gone, is_fitting=refusal is None)
    if run.keeps_copy and (gone or entered):
        recovery.copy = save_counts(run)
    copies = _find_copies(run, gone)
    index.enter(list(gone), itertools.repeat(0, len(gone)))  # with one reference each, and that is released
    index.release(list(gone))
    index.enter(list(copies), copies.values(), [gone[msg_id] for msg_id in copies])
    index.enter(list(entered), entered.values())
    run.count_live()
    for changed in read.values():
        recovery.garbage += len(changed.sizes) - changed.segment.live_count
        missing = sum(msg_id not in copies for msg_id in changed.gone)
        if missing and changed.row is not None and not changed.agrees and not changed.is_shortened:
            name, size = changed.segment.path.name, changed.segment.size
            recovery.lost.append(LostSegment(name, size, changed.row.size, missing))
    recovery.missing = len(gone) - len(copies)
    recovery.first_missing = next((msg_id for msg_id in gone if msg_id not in copies), None)
    recovery.kept = before - recovery.missing
    recovery.entered = len(copies) + len(entered)


def _read_changed(run: RecoveryRun, plan: RecoveryPlan, *, is_fitting: bool) -> dict[int, _Changed]:
    """Read the segments that are not as they were saved, and return them by number; the others get what their rows say of them.
    All are read if the index is damaged. If it fits all others, those that were compared with it are not read again."""
    todo = []
    for segment in run.segments:
        if is_fitting and segment in plan.verify:
            continue
        row = plan.rows.get(segment.path.name)
        segment.quarantined = row is not None and row.quarantined
        now = segment.size, segment.sealed_mtime_ns
        if row is None or plan.is_damaged or row.compacting or now != (row.size, row.mtime_ns):
            todo.append(segment)
        else:
            segment.appendable = row.appendable
    read = {}
    for segment in run.metered(todo):
        row = plan.rows.get(segment.path.name)
        sizes = {(msg_id, offset): size for msg_id, offset, size in places(run.scan(segment))}
        read[segment.number] = changed = _Changed(segment, row, sizes)
        segment.appendable &= row is None or row.appendable
        segment.quarantined |= changed.is_shortened and segment.torn  # it ended with a whole record
    return read


def _find_gone(run: RecoveryRun, read: Mapping[int, _Changed]) -> dict[bytes, int]:
    """Return the number of references by id, for index entries whose records are gone."""
    gone: dict[bytes, int] = {}
    for msg_id, location, references in run.index.items():
        number, offset, size = unpack_location(location)
        if number in read:
            changed = read[number]
            if changed.sizes.get((msg_id, offset)) == size:
                changed.found += 1
            else:
                changed.gone[msg_id] = references
        elif number not in run.segments.by_number:
            gone[msg_id] = references
    for changed in read.values():
        if not changed.agrees:
            gone |= changed.gone
    return gone


def _find_new(
    index: Index, read: Mapping[int, _Changed], gone: Mapping[bytes, int], *, is_fitting: bool
) -> tuple[dict[bytes, int], int]:
    """Return the location of each live record that the index does not have, by id, and the number of those that may have been
    removed: they include all records of segments that the index does not know, unless it fits all others.

    Of several copies the one in the file with the highest number counts, and in one file the first.
    """
    entered: dict[bytes, int] = {}
    revived = set()
    for number, changed in read.items():
        size = 0 if changed.row is None else changed.row.size
        here: dict[bytes, int] = {}
        for (msg_id, offset), length in sorted(changed.sizes.items(), key=lambda place: place[0][1]):
            is_new = offset >= size or not (is_fitting or changed.agrees)
            if is_new and msg_id not in here and msg_id not in gone and index.get(msg_id) is None:
                here[msg_id] = pack_location(number, offset, length)
                if not is_fitting and (offset < size or changed.row is None):
                    revived.add(msg_id)
        entered |= here
    return entered, len(revived)


def _find_copies(run: RecoveryRun, wanted: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return the location of another record of each id, if a segment has one. Damage is not reported here.

    An id names one body for ever, so any copy will do: of several the one that a rebuild would take.
    """
    copies: dict[bytes, int] = {}
    segments, scanned = run.segments, run.recovery.scanned
    for segment in run.metered(segments if wanted else ()):
        with segments.errors(segment), segments.files.view(segment.path) as data:
            found = list(places(segment.form.scan(data)))
        copies |= {i: pack_location(segment.number, at, size) for i, at, size in reversed(found) if i in wanted}
        if segment.path.name not in scanned:
            scanned.append(segment.path.name)
    return copies


def save_counts(run: RecoveryRun) -> str:
    """Save all counts of the index in a new file in the store's directory. Return its name."""
    segments = run.segments
    there = segments.files.list(segments.directory)
    name = next(name for n in itertools.count(1) if (name := f"msgstore-counts-{n}.csv") not in there)
    segments.files.write_file(segments.directory / name, _lines(run.index), sync=segments.is_durable)
    return name


def _lines(index: Index) -> Iterator[bytes]:
    yield b"id,count\n"
    items = index.items()
    while some := list(itertools.islice(items, _LINES)):
        yield "".join(f"{msg_id.hex()},{references}\n" for msg_id, _, references in some).encode()
