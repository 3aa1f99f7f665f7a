"""Index recovery: make index and segments agree when a store opens.

The saved index is used as it is, completed by tail scans, reconciled with the records, or rebuilt from all segments; see
:mod:`msgstore.engine.open.recovery_plan`. Reference counts are kept wherever that is possible.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import RESCUED_KEY, Index, PluginError, StoreMismatch
from msgstore.directory import Settings
from msgstore.engine.backends import make_remembered_index, of_index
from msgstore.engine.open.broker_counts import read_broker_counts
from msgstore.engine.open.clean_shutdown import ShutdownFiles
from msgstore.engine.open.lost_segments import recover_without_segments, repair_index, report_all_missing, report_lost
from msgstore.engine.open.reconcile import rebuild_distrusted, reconcile
from msgstore.engine.open.recovery import BATCH, copy_entries, rebuild, scan_tail, verify
from msgstore.engine.open.recovery_plan import ProgressMeter, Recovery, RecoveryPlan, RecoveryProgress, compare_with_index
from msgstore.engine.segment.segments import Segments
from msgstore.plugins.catalogue import Catalogue

log = logging.getLogger("msgstore.recovery")


@attrs.frozen
class IndexRecovery:
    """One recovery of one opening."""

    config: StoreConfig
    catalogue: Catalogue
    segments: Segments
    index: Index
    """The configured index, loaded."""
    state: Mapping[bytes, bytes]
    """State that the index was saved with."""
    remembered: Settings | None
    """Settings of the last opening."""
    shutdown_files: ShutdownFiles
    counts: Mapping[bytes, int] | None
    """Reference counts given by the caller."""
    progress: RecoveryProgress | None
    read_only: bool

    def run(self) -> Recovery:
        """Recover, and report lost segments. Raises StoreMismatch, StoreError, OSError."""
        segments, index = self.segments, self.index
        if not segments.by_number:
            recovery = recover_without_segments(self.state, index)
            if self.shutdown_files.foreign and self.counts is None:
                report_all_missing(segments, self.shutdown_files, recovery)
            index.clear()
            report_lost(segments, recovery)
            return recovery
        recovery, refusal, plan = Recovery(), None, None
        rescued: Mapping[bytes, int] = {}
        if self.shutdown_files.foreign:
            refusal = "RabbitMQ has saved one of its own since"
            plan = compare_with_index(self.state, segments, self.shutdown_files)
        elif self.remembered is None or self.remembered.index == self.config.index.name:
            recovery = Recovery("trust")
            rescued = rescued_counts(index, self.state)
            plan = compare_with_index(self.state, segments, self.shutdown_files)
            refusal = self._follow(plan, index, recovery)
        else:
            recovery = Recovery("taken over")
            refusal, rescued = self._take_over(self.remembered.index, recovery)
        if refusal is not None:
            recovery = self._rebuild(refusal, plan, recovery)
            if self.counts is None:
                restore_counts(segments, index, rescued, recovery)
        if recovery.lost:
            report_lost(segments, recovery)
        return recovery

    def _rebuild(self, refusal: str, plan: RecoveryPlan | None, before: Recovery) -> Recovery:
        """Rebuild the index from all segments, because of ``refusal``."""
        log.info("%s: the index is rebuilt from the segments: %s", self.config.path, refusal)
        broker = None
        if self.shutdown_files.foreign and self.counts is None:
            broker = read_broker_counts(self.segments, self.shutdown_files, read_only=self.read_only)
        recovery = Recovery("rebuild", lost=before.lost)
        if plan is not None and plan.rows:
            recovery.distrust = refusal
            rebuild_distrusted(
                self.segments, self.index, plan, self.counts, recovery, self.progress, broker, keeps_copy=not self.read_only
            )
        else:
            rebuild(self.segments, self.index, self.counts, recovery, self.progress, broker)
        return recovery

    def _take_over(self, name: str, recovery: Recovery) -> tuple[str | None, Mapping[bytes, int]]:
        """Copy the entries of the index of the last opening. Return why that is not possible, and the counts that were read
        from its damaged files."""
        try:
            other = make_remembered_index(name, self.config, self.catalogue, self.segments.files)
        except PluginError as error:
            if self.counts is not None:
                return str(error), {}
            raise StoreMismatch(
                f"{self.config.path}: was last opened with the index {name!r}, which has the reference counts. To rebuild "
                f"without it pass them yourself (refcounts=, --refcounts); to use it: {error}"
            ) from error
        try:
            with of_index(name, self.config, self.catalogue, "load its entries in"):
                state = other.load() or {}
            plan = compare_with_index(state, self.segments, self.shutdown_files)
            return self._follow(plan, other, recovery), rescued_counts(other, state)
        finally:
            other.close(None)

    def _follow(self, plan: RecoveryPlan, source: Index, recovery: Recovery) -> str | None:
        """Carry a plan out: verify, copy entries from another index, scan tails, repair. Return why the index cannot be used.

        Counts given by the caller are better than those of an index that has to be repaired.
        """
        segments, index, has_counts = self.segments, self.index, self.counts is not None
        recovery.lost = plan.lost
        refusal = plan.refusal or self._refute(plan, source, recovery)
        if refusal is not None and plan.rows and not has_counts:
            if source is not index:
                copy_entries(segments, index, source)
            keeps_copy = source is index and not self.read_only  # an index that is taken over stays as it is
            reconcile(segments, index, plan, refusal, recovery, self.progress, keeps_copy=keeps_copy)
            return None
        if refusal is not None:
            return refusal
        if plan.lost and has_counts:
            return "segments are missing or shortened, and counts were given"
        if source is not index:
            copy_entries(segments, index, source)
        elif plan.tails:
            recovery.how = "tail"
        for segment, start in plan.tails:
            scan_tail(segments, index, segment, start, recovery)
        if plan.lost:
            repair_index(segments, index, recovery, self.progress)
        return None

    def _refute(self, plan: RecoveryPlan, source: Index, recovery: Recovery) -> str | None:
        """Verify segments whose time has changed. Return what contradicts the index, or None."""
        meter = ProgressMeter(plan.verify, self.progress)
        for segment in plan.verify:
            if not verify(self.segments, source, segment, recovery):
                return f"{segment.path.name} was changed, and does not hold what the index has in it"
            meter.add(segment)
        return None


def rescued_counts(index: Index, state: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Return the counts above one by id. Call it before the rebuild, which clears the index."""
    if RESCUED_KEY not in state:
        return {}
    return {msg_id: count for msg_id, _, count in index.items() if count > 1}


def restore_counts(segments: Segments, index: Index, rescued: Mapping[bytes, int], recovery: Recovery) -> None:
    """Give the counts to the messages that a rebuild has found. The others keep one reference."""
    if recovery.how != "rebuild" or not rescued:
        return
    rest, restored = iter(rescued.items()), 0
    while batch := list(islice(rest, BATCH)):
        found = [(msg_id, at, count) for msg_id, count in batch if (at := index.get(msg_id)) is not None]
        if found:
            index.enter(*zip(*found, strict=True))
        restored += len(found)
    log.warning(
        "%s: %d of %d messages have the counts that were read from the damaged index; every other one has one reference",
        segments.directory,
        restored,
        recovery.entered,
    )
