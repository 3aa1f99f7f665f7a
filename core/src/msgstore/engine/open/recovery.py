"""Recovery: make index and segments agree when a store opens, as :mod:`msgstore.engine.open.recovery_plan` says.

The saved index is used as it is, completed by tail scans, reconciled with the records, or rebuilt from all segments. Opening
never truncates a segment. One that does not end cleanly is sealed, and a damaged one is quarantined.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice, repeat

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import RESCUED_KEY, Buffer, Columns, Index, IndexContext, PluginError, SegmentScan, StoreMismatch
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.backends import load_entries, of_index
from msgstore.engine.open.broker import read_broker_counts
from msgstore.engine.open.reconcile import reconcile, save_counts
from msgstore.engine.open.recovery_plan import Recovery, RecoveryPlan, RecoveryRun, SegmentAndScan, compare_with_index, places
from msgstore.engine.segment.segment import Segment
from msgstore.locations import pack_location, pack_locations, unpack_location
from msgstore.plugins.catalogue import Catalogue

log = logging.getLogger("msgstore.recovery")
_store_log = logging.getLogger("msgstore.store")  # commands that report damage themselves mute the other logger

MIGRATION_COUNTS = "msgstore-migrate-counts.csv"
"""File of the counts from before a migration of the command line. There after the migration was killed."""
_BATCH = 100_000
"""Entries that are handed from one index to another at a time."""
_HEAD_BYTES = 2**16


def recover_index(
    run: RecoveryRun, config: StoreConfig, catalogue: Catalogue, state: Mapping[bytes, bytes], last_index: str
) -> Recovery:
    """Recover the loaded index, which was saved with ``state``, and report lost segments.

    ``last_index``: name of the index of the last opening, whose entries are taken over if it is another one.

    Raises StoreMismatch, StoreError, OSError.
    """
    segments, index, recovery, is_foreign = run.segments, run.index, run.recovery, run.shutdown_files.foreign
    recovery.how = "trust"
    is_other = last_index != config.index.name and not is_foreign and bool(segments.by_number)
    if is_other:
        recovery.how = "taken over"
        run = attrs.evolve(run, keeps_copy=False)  # the other index stays as it is
        state = _take_over(run, last_index, config, catalogue)
    plan = compare_with_index(state, segments, run.shutdown_files)
    recovery.lost = list(plan.lost)
    refusal = plan.refusal or _refute(run, plan.verify) or _find_replaced(run, plan.tails)
    if refusal is None and not plan.lost:
        if plan.tails and recovery.how == "trust":
            recovery.how = "tail"
        for segment, start in plan.tails:
            _scan_tail(run, segment, start)
    elif plan.rows and run.counts is None and not is_foreign:
        reconcile(run, plan, refusal)
    else:
        has_rescued = run.counts is None and RESCUED_KEY in state and not is_foreign
        rescued = {msg_id: count for msg_id, _, count in index.items() if count > 1} if has_rescued else {}
        why = refusal or "segments are missing or shortened, and counts were given"
        _rebuild(run, RecoveryPlan() if is_other else plan, why, rescued if run.counts is None else run.counts)
    if not segments.by_number:
        index.clear()
        if not recovery.missing and recovery.distrust is None:
            recovery.how = "new"
    _report(run)
    return recovery


def _report(run: RecoveryRun) -> None:
    """Log why the saved counts were not taken as they were, what became of them, and which segments are lost."""
    recovery, directory = run.recovery, run.segments.directory
    if recovery.distrust is not None:
        where = "" if recovery.copy is None else f" The counts of before are in {directory / recovery.copy}."
        log.warning(
            "%s: the saved counts do not fit the directory: %s. %d messages keep their counts, %d are missing, %d may have "
            "been removed and are live again, %d records were entered.%s",
            directory, recovery.distrust, recovery.kept, recovery.missing, recovery.revived, recovery.entered, where,
        )  # fmt: skip
    for lost in recovery.lost:
        recovery.damaged.append(f"{lost.file}: {lost}")
        run.segments.telemetry.damage(lost.file, lost.found, lost.reason)
        log.warning("%s: %s", directory / lost.file, lost)


def _take_over(run: RecoveryRun, name: str, config: StoreConfig, catalogue: Catalogue) -> Mapping[bytes, bytes]:
    """Copy every entry of the index of the last opening, and return its state."""
    try:
        descriptor = catalogue.index(name)
        context = IndexContext(descriptor.options(), config.path, run.segments.files, sync=False, read_only=True)
        other: Index = catalogue.make(descriptor, context)
    except PluginError as error:
        if run.counts is not None:
            log.info("%s: the index of the last opening is not taken over: %s", config.path, error)
            return {}
        raise StoreMismatch(
            f"{config.path}: was last opened with the index {name!r}, which has the reference counts. To rebuild "
            f"without it pass them yourself (refcounts=, --refcounts); to use it: {error}"
        ) from error
    try:
        with of_index(name, config, catalogue, "load its entries in"):
            state = load_entries(other)
        run.index.clear()
        entries = iter(other.items())
        while batch := list(islice(entries, _BATCH)):
            run.index.enter(*zip(*batch, strict=True))
    finally:
        other.close(None)
    log.info("%s: took over %d entries from the index of the last opening", config.path, len(run.index))
    return state


def _refute(run: RecoveryRun, changed: Iterable[Segment]) -> str | None:
    """Return what contradicts the index, or None if each segment has as many indexed records, copies included, as it counts.

    Damage does not refute the index: the segment is quarantined, and each read checks its record.
    """
    for segment in run.metered(changed):
        found = sum(run.index.get(i) == pack_location(segment.number, at, size) for i, at, size in places(run.scan(segment)))
        if found != segment.live_count and not segment.quarantined:
            return f"{segment.path.name} was changed, and does not hold what the index has in it"
    return None


def _find_replaced(run: RecoveryRun, tails: Iterable[tuple[Segment, int]]) -> str | None:
    """Return which segment whose tail is to be scanned is another file, or None. Such a file is whole up to the indexed size,
    and has no record of the index. Usually the first ``_HEAD_BYTES`` show one, and only they are read."""
    files = run.segments.files
    for segment, size in tails:
        if segment.live_count:
            with run.segments.errors(segment), files.closing(files.open_read(segment.path)) as fd:
                has_any, _ = _compare(run, segment, files.pread(fd, _HEAD_BYTES, 0))
            if not has_any:
                with run.segments.errors(segment), files.view(segment.path) as data:
                    has_any, end = _compare(run, segment, data)
                if not has_any and end >= size:
                    return f"{segment.path.name} was replaced, and holds nothing of what the index has in it"
    return None


def _compare(run: RecoveryRun, segment: Segment, data: Buffer) -> tuple[bool, int]:
    """Return whether a record of ``data`` is in the index at its place, and the offset at which whole records end."""
    scan = segment.form.scan(data)
    newest_first = reversed(list(places(scan)))  # in a queue the live ones are the newest
    has_any = any(run.index.get(i) == pack_location(segment.number, at, size) for i, at, size in newest_first)
    return has_any, min([scan.end.offset, *(damage.offset for damage in scan.damage)])


def _scan_tail(run: RecoveryRun, segment: Segment, start: int) -> None:
    """Enter the records from ``start`` on, after the last commit. An id in the index keeps its older record and its count."""
    if start == segment.size and segment.appendable:
        return  # nothing was appended since the commit: the file is not read
    scan, index = run.scan(segment, start), run.index
    new = [(i, o, s) for i, o, s, _ in scan.records.rows() if index.get(i) is None]
    index.enter([i for i, _, _ in new], [pack_location(segment.number, o, s) for _, o, s in new])
    segment.live_count += len(new)
    segment.live_bytes += sum(s for _, _, s in new)
    run.recovery.entered += len(new)
    run.recovery.garbage += len(scan.records) - len(new) + len(scan.duplicates)


def _rebuild(run: RecoveryRun, plan: RecoveryPlan, why: str, counts: Mapping[bytes, int]) -> None:
    """Fill the index from the hint file or a scan of every segment, and say what that brings back.

    ``counts`` are complete if they are given by the caller: what they do not name is garbage. Otherwise they are those above
    one that were read from a damaged index, and every other message has one reference. Counts that a broker saved are compared
    with all records before the first is entered, so all records are in memory.

    Of copies in several files the highest-numbered file's wins, in one file the first. A rebuild that is stopped begins
    again: until the opening is complete, each commit leaves an index without a layout.
    """
    segments, index, recovery, is_given = run.segments, run.index, run.recovery, run.counts is not None
    broker = None
    if run.shutdown_files.foreign and not is_given:
        broker = read_broker_counts(segments, run.shutdown_files, read_only=not run.keeps_copy)
    log.info("%s: the index is rebuilt from the segments: %s", segments.directory, why)
    recovery.how, recovery.counts = "rebuild", "given" if is_given else "one each"
    recovery.scanned.clear()
    recovery.damaged.clear()
    before: set[bytes] = set()
    if plan.rows:
        recovery.distrust = why
        before = {msg_id for msg_id, _, _ in index.items()}
        if before and run.keeps_copy:
            recovery.copy = save_counts(run)
    index.clear()
    default = 0 if is_given or broker else 1
    found: Iterable[SegmentAndScan] = _read_all(run)
    if broker is not None:
        found = everything = list(found)
        recovery.counts, counts = broker.decide(everything)
    elif not is_given and MIGRATION_COUNTS in segments.files.list(segments.directory):
        what = "%s: a migration was killed, and each message counts once, also removed ones. The counts of before are in %s"
        _store_log.warning(
            f"{what}: pass them (refcounts=, --refcounts) if nothing was written since", segments.directory, MIGRATION_COUNTS
        )
    counts = {msg_id: count for msg_id, count in counts.items() if count > 0}
    records = 0
    for segment, scan in found:
        _enter(index, segment, scan.records, counts, default)
        records += len(scan.records) + len(scan.duplicates)
        index.freeze({})
        index.commit()
    if sum(segment.live_count for segment in segments) > len(index):
        run.count_live()  # there are copies
    recovery.entered = len(index)
    recovery.garbage = records - recovery.entered
    named = recovery.entered if not default else sum(index.get(msg_id) is not None for msg_id in counts)
    if not default and named < len(counts):
        recovery.missing = len(counts) - named
        recovery.first_missing = next(msg_id for msg_id in counts if index.get(msg_id) is None)
        log.warning("%s: %d ids with references have no record", segments.directory, recovery.missing)
        for segment in segments:  # they may stand behind what looks like a write that was cut off
            segment.quarantined |= segment.torn
    elif default and counts:
        what = "%s: %d of %d messages have the counts that were read from the damaged index; every other one has one reference"
        log.warning(what, segments.directory, named, recovery.entered)
    if recovery.counts == "msg_store_index.ets":
        recovery.distrust = None  # exact: nothing dead comes back
    elif plan.rows and not is_given:
        sizes = {segment.number: row.size for segment in segments if (row := plan.rows.get(segment.path.name))}
        for msg_id, location, _ in index.items():
            number, offset, _ = unpack_location(location)
            recovery.revived += offset < sizes.get(number, 0) and msg_id not in before


def _read_all(run: RecoveryRun) -> Iterator[SegmentAndScan]:
    """Yield the records of each segment, in number order. One segment is in memory at a time."""
    hints, newest = run.segments.hints, max(run.segments.by_number, default=-1)
    for segment in run.metered(run.segments):
        hint = hints.load(segment)
        if hint is not None:
            run.recovery.hinted.append(segment.path.name)
            segment.appendable = True
            scan = SegmentScan(records=hint)
        else:
            scan = run.scan(segment)
            if segment.appendable and not scan.duplicates and segment.number != newest:
                hints.write_one(segment, (scan.records.ids, scan.records.offsets, scan.records.sizes))
        yield segment, scan


def _enter(index: Index, segment: Segment, found: Columns, counts: Mapping[bytes, int], default: int) -> None:
    """Enter the records of one segment. It counts copies as live, too."""
    ids, locations = found.id_list(), pack_locations(segment.number, found.offsets, found.sizes)
    sizes: Sequence[int] = found.sizes
    references: list[int] | None = None
    if counts or not default:
        named = list(map(counts.get, ids, repeat(default)))
        if 0 in named:
            sizes = list(compress(sizes, named))
            ids, locations, named = list(compress(ids, named)), list(compress(locations, named)), list(filter(None, named))
        references = named if named.count(1) < len(named) else None
    segment.live_count, segment.live_bytes = len(ids), sum(sizes)
    before = len(index)
    index.enter(ids, locations, references)
    if len(index) - before < len(ids) and len(first := dict(zip(reversed(ids), reversed(locations), strict=True))) < len(ids):
        index.enter(list(first), first.values(), [counts.get(msg_id, default) for msg_id in first])  # a hint has copies


def sum_counts(refcounts: Iterable[tuple[bytes, int]]) -> dict[bytes, int]:
    """Return the sums of reference-count deltas by id. Raises ValueError for an invalid id or number, or too large a sum."""
    counts: dict[bytes, int] = {}
    for msg_id, count in refcounts:
        if not isinstance(msg_id, bytes) or len(msg_id) != 16 or not isinstance(count, int):
            raise ValueError(f"refcounts: ({msg_id!r}, {count!r}) is not a 16-byte id and an integer")
        counts[msg_id] = counts.get(msg_id, 0) + count
    msg_id, count = max(counts.items(), key=lambda pair: pair[1], default=(b"", 0))
    if count > MAX_REFERENCES:
        raise ValueError(f"refcounts: {msg_id.hex()} has {count} references; at most {MAX_REFERENCES} are counted")
    return counts
