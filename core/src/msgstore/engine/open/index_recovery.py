"""Index recovery: make index and segments agree when a store opens.

The saved index is used as it is, completed by tail scans, reconciled with the records, or rebuilt from all segments; see
:mod:`msgstore.engine.open.recovery_plan`. Reference counts are kept wherever that is possible.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import RESCUED_KEY, Index, IndexContext, PluginError, StoreMismatch
from msgstore.engine.backends import of_index
from msgstore.engine.open.broker_counts import BrokerCounts, read_broker_counts
from msgstore.engine.open.clean_shutdown import SAVED_COUNTS, ShutdownFiles
from msgstore.engine.open.reconcile import reconcile, repair, report_distrust, save_counts
from msgstore.engine.open.recovery import RecoveryRun, rebuild, refute, scan_tail
from msgstore.engine.open.recovery_plan import Recovery, RecoveryPlan, RecoveryProgress, compare_with_index, missing_files
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state import checkpoint
from msgstore.files import Files
from msgstore.locations import unpack_location
from msgstore.plugins.catalogue import Catalogue

log = logging.getLogger("msgstore.recovery")
_store_log = logging.getLogger("msgstore.store")  # commands that report damage themselves turn the other one off

_BATCH = 100_000
"""Entries that are handed from one index to another at a time."""
_NO_PLAN = RecoveryPlan(refusal="there is none that was saved")


def recover_index(
    config: StoreConfig,
    catalogue: Catalogue,
    segments: Segments,
    index: Index,
    state: Mapping[bytes, bytes],
    last_index: str,
    shutdown_files: ShutdownFiles,
    counts: Mapping[bytes, int] | None,
    progress: RecoveryProgress | None,
    *,
    read_only: bool,
) -> Recovery:
    """Recover the loaded ``index``, which was saved with ``state``, and report lost segments.

    ``last_index``: name of the index of the last opening, whose entries are taken over if it is another one. ``counts``:
    reference counts given by the caller, which are better than those of an index that has to be repaired.

    Raises StoreMismatch, StoreError, OSError.
    """
    recovery = Recovery()
    run = RecoveryRun(segments, index, recovery, progress, keeps_copy=not read_only)
    is_foreign = shutdown_files.foreign
    if not segments.by_number:
        _recover_without_segments(run, state)
        if is_foreign and counts is None:
            _report_all_missing(run, shutdown_files)
        index.clear()
        _report_lost(run)
        return recovery
    recovery.how = "trust"
    if last_index != config.index.name and not is_foreign:
        recovery.how = "taken over"
        run = attrs.evolve(run, keeps_copy=False)  # the other index stays as it is
        state = _take_over(last_index, config, catalogue, segments.files, index, has_counts=counts is not None)
    plan = compare_with_index(state, segments, shutdown_files) if state else _NO_PLAN
    if is_foreign:
        broker = read_broker_counts(segments, shutdown_files, read_only=read_only) if counts is None else None
        _rebuild(run, plan, "RabbitMQ has saved one of its own since", counts, broker=broker)
        return recovery
    recovery.lost = list(plan.lost)
    refusal = plan.refusal or refute(run, plan.verify)
    if plan.lost and counts is not None:
        refusal = refusal or "segments are missing or shortened, and counts were given"
    if refusal is None:
        _complete(run, plan)
    elif plan.rows and counts is None:
        reconcile(run, plan, refusal)
    else:
        has_rescued = RESCUED_KEY in state and counts is None
        rescued = {msg_id: count for msg_id, _, count in index.items() if count > 1} if has_rescued else {}
        _rebuild(run, _NO_PLAN if recovery.how == "taken over" else plan, refusal, counts, rescued=rescued)
    _report_lost(run)
    return recovery


def _take_over(
    name: str, config: StoreConfig, catalogue: Catalogue, files: Files, index: Index, *, has_counts: bool
) -> Mapping[bytes, bytes]:
    """Copy every entry of the index of the last opening, and return its state."""
    try:
        descriptor = catalogue.index(name)
        context = IndexContext(descriptor.options(), config.path, files, sync=False, read_only=True)
        other: Index = catalogue.make(descriptor, context)
    except PluginError as error:
        if has_counts:
            log.info("%s: the index of the last opening is not taken over: %s", config.path, error)
            return {}
        raise StoreMismatch(
            f"{config.path}: was last opened with the index {name!r}, which has the reference counts. To rebuild "
            f"without it pass them yourself (refcounts=, --refcounts); to use it: {error}"
        ) from error
    try:
        with of_index(name, config, catalogue, "load its entries in"):
            state = other.load() or {}
        index.clear()
        entries = iter(other.items())
        while batch := list(islice(entries, _BATCH)):
            index.enter(*zip(*batch, strict=True))
    finally:
        other.close(None)
    log.info("%s: took over %d entries from the index of the last opening", config.path, len(index))
    return state


def _complete(run: RecoveryRun, plan: RecoveryPlan) -> None:
    """Use the index: enter what came after its last commit, and repair what it has in lost segments."""
    if plan.tails and run.recovery.how == "trust":
        run.recovery.how = "tail"
    for segment, start in plan.tails:
        scan_tail(run, segment, start)
    if plan.lost:
        repair(run, plan)


def _rebuild(
    run: RecoveryRun,
    plan: RecoveryPlan,
    refusal: str,
    counts: Mapping[bytes, int] | None,
    *,
    broker: BrokerCounts | None = None,
    rescued: Mapping[bytes, int] = MappingProxyType({}),
) -> None:
    """Rebuild the index from all segments, because of ``refusal``, and say what that brings back.

    ``rescued``: counts above one that were read from a damaged index. Every other message has one reference.
    """
    segments, index, recovery = run.segments, run.index, run.recovery
    log.info("%s: the index is rebuilt from the segments: %s", segments.directory, refusal)
    known: set[bytes] = set()
    if plan.rows:
        recovery.distrust = refusal
        known = {msg_id for msg_id, _, _ in index.items()}
        if known and run.keeps_copy:
            recovery.copy = save_counts(run)
    if counts is not None:
        rebuild(run, counts, 0)
    else:
        rebuild(run, rescued, 1, broker)
    if rescued:
        log.warning(
            "%s: %d of %d messages have the counts that were read from the damaged index; every other one has one reference",
            segments.directory, sum(index.get(msg_id) is not None for msg_id in rescued), recovery.entered,
        )  # fmt: skip
    if recovery.counts == "msg_store_index.ets":
        recovery.distrust = None  # exact: nothing dead comes back
    elif plan.rows:
        if counts is None:
            sizes = {segment.number: row.size for segment in segments if (row := plan.rows.get(segment.path.name))}
            for msg_id, location, _ in index.items():
                number, offset, _ = unpack_location(location)
                recovery.revived += offset < sizes.get(number, 0) and msg_id not in known
        report_distrust(run)


def _recover_without_segments(run: RecoveryRun, state: Mapping[bytes, bytes]) -> None:
    """Recover a directory without segments. It is new, or all segments of a saved index are lost."""
    recovery = run.recovery
    try:
        recovery.lost = missing_files(checkpoint.rows(state), ())
    except ValueError:
        recovery.how = "rebuild"
    if recovery.lost:
        recovery.how = "rebuild"
        recovery.missing = sum(found.messages for found in recovery.lost)
        recovery.first_missing = next((msg_id for msg_id, _, _ in run.index.items()), None)


def _report_all_missing(run: RecoveryRun, shutdown_files: ShutdownFiles) -> None:
    """Report every message of a broker's saved counts as missing: the directory has no segment."""
    recovery, segments = run.recovery, run.segments
    counts = read_broker_counts(segments, shutdown_files, read_only=True)
    live = [msg_id for msg_id, count in counts.references.items() if count] if counts is not None else []
    if live:
        recovery.how, recovery.missing, recovery.first_missing = "rebuild", len(live), live[0]
        what = "%s: %s has %d messages, and no segment is there: they are lost"
        _store_log.warning(what, segments.directory, SAVED_COUNTS, len(live))


def _report_lost(run: RecoveryRun) -> None:
    """Report lost segments: a warning, an event and a line of ``recovery.damaged`` for each."""
    recovery, segments = run.recovery, run.segments
    for found in recovery.lost:
        recovery.damaged.append(f"{found.file}: {found}")
        segments.telemetry.damage(found.file, found.found, found.reason)
        if segments.by_number:
            log.warning("%s: %s", segments.directory / found.file, found)
    if recovery.lost and not segments.by_number:
        what = "%s: the index has %d messages, and no segment is there: they are lost"
        log.warning(what, segments.directory, recovery.missing)
