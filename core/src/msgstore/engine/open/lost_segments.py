"""Lost segments: report them, and keep the messages of the other segments with their reference counts.

A segment is lost if the index has live messages in it and it is missing, or shorter than when it was sealed. Each is told: as
a warning, an event and a line of ``recovery.damaged``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import repeat

from msgstore.contract import Index
from msgstore.engine.open.broker_counts import read_broker_counts
from msgstore.engine.open.clean_shutdown import SAVED_COUNTS, ShutdownFiles
from msgstore.engine.open.recovery import count_live, scan_segment
from msgstore.engine.open.recovery_plan import ProgressMeter, Recovery, RecoveryProgress, missing_files
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state import checkpoint
from msgstore.locations import pack_location, unpack_location

log = logging.getLogger("msgstore.recovery")
_store_log = logging.getLogger("msgstore.store")  # commands that report damage themselves turn the other one off


def recover_without_segments(state: Mapping[bytes, bytes], index: Index) -> Recovery:
    """Recover a directory without segments. It is new, or all segments of a saved index are lost."""
    try:
        lost = missing_files(checkpoint.rows(state), ())
    except ValueError:
        return Recovery("rebuild")
    if not lost:
        return Recovery()
    first = next((msg_id for msg_id, _, _ in index.items()), None)
    return Recovery("rebuild", lost=lost, missing=sum(found.messages for found in lost), first_missing=first)


def report_lost(segments: Segments, recovery: Recovery) -> None:
    """Report lost segments: a warning, an event and a line of ``recovery.damaged`` for each."""
    for found in recovery.lost:
        recovery.damaged.append(f"{found.file}: {found}")
        segments.telemetry.damage(found.file, found.found, found.reason)
        if segments.by_number:
            log.warning("%s: %s", segments.directory / found.file, found)
    if recovery.lost and not segments.by_number:
        what = "%s: the index has %d messages, and no segment is there: they are lost"
        log.warning(what, segments.directory, recovery.missing)


def repair_index(segments: Segments, index: Index, recovery: Recovery, progress: RecoveryProgress | None) -> None:
    """Remove entries of lost records, or point them to copies in other segments. Counts are kept.

    An id names one body for ever, so any copy will do for a record that is gone: of several the one that a rebuild would take.
    Nothing is committed here: until the opening is complete the index on disk knows all that it knew.
    """
    recovery.how = "rebuild"
    there: dict[int, set[tuple[bytes, int]]] = {}
    shortened = {found.file for found in recovery.lost}
    for segment in segments:
        if segment.path.name in shortened:
            there[segment.number] = _places(segments, segment, recovery)
    gone: dict[bytes, int] = {}
    for msg_id, location, references in index.items():
        number, offset, _ = unpack_location(location)
        if number not in segments.by_number or (number in there and (msg_id, offset) not in there[number]):
            gone[msg_id] = references
    copies = find_copies(segments, gone, recovery, progress) if gone else {}
    index.enter(list(gone), repeat(0, len(gone)))  # with one reference each, and that is released
    index.release(list(gone))
    index.enter(list(copies), copies.values(), [gone[msg_id] for msg_id in copies])
    count_live(segments, index)
    recovery.entered += len(copies)
    recovery.missing = len(gone) - len(copies)
    recovery.first_missing = next((msg_id for msg_id in gone if msg_id not in copies), None)


def _places(segments: Segments, segment: Segment, recovery: Recovery) -> set[tuple[bytes, int]]:
    """Return (id, offset) of each record that is left in a shortened segment. A torn record at its end is damage: it ended with
    a whole one."""
    scan = scan_segment(segments, segment, 0, recovery)
    segment.quarantined |= segment.torn
    return {(msg_id, offset) for columns in (scan.records, scan.duplicates) for msg_id, offset, _, _ in columns.rows()}


def find_copies(
    segments: Segments, wanted: Mapping[bytes, int], recovery: Recovery, progress: RecoveryProgress | None
) -> dict[bytes, int]:
    """Return the location of another record of each id, if a segment has one. Damage is not reported here."""
    copies: dict[bytes, int] = {}
    meter = ProgressMeter(segments, progress)
    for segment in segments:
        with segments.errors(segment), segments.files.view(segment.path) as data:
            scan = segment.form.scan(data)
        found: dict[bytes, int] = {}
        for columns in (scan.records, scan.duplicates):
            for msg_id, offset, size, _ in columns.rows():
                if msg_id in wanted:
                    found.setdefault(msg_id, pack_location(segment.number, offset, size))
        copies |= found
        if segment.path.name not in recovery.scanned:
            recovery.scanned.append(segment.path.name)
        meter.add(segment)
    return copies


def report_all_missing(segments: Segments, shutdown_files: ShutdownFiles, recovery: Recovery) -> None:
    """Report every message of a broker's saved counts as missing: the directory has no segment."""
    counts = read_broker_counts(segments, shutdown_files, read_only=True)
    live = [msg_id for msg_id, count in counts.references.items() if count] if counts is not None else []
    if live:
        recovery.how, recovery.missing, recovery.first_missing = "rebuild", len(live), live[0]
        what = "%s: %s has %d messages, and no segment is there: they are lost"
        _store_log.warning(what, segments.directory, SAVED_COUNTS, len(live))
