"""Recovery plan: compare the saved index with the segments, to decide how it is recovered. What the steps of a recovery share.

================  ==================================================================================================
``trust``         The index was saved at a clean shutdown and nothing has changed since. Nothing is read, except segments
                  whose time of change is another one, such as those of a copied directory.
``tail``          The shutdown was dirty. Records after the last commit of a persistent index are scanned, or after the
                  last clean shutdown if the process ended before its first commit.
``reconciled``    The saved index does not fit the directory. Counts are kept where the records agree with it
                  (:mod:`msgstore.engine.open.reconcile`).
``rebuild``       Everything else. Every segment is scanned, or its hint file is read
                  (:mod:`msgstore.engine.segment.hints`). Reference counts are given by the caller, saved by a broker
                  (:mod:`msgstore.engine.open.broker`), or one each.
``live``          A reader next to a writer in another process: it sees what that one commits, and recovers nothing.
================  ==================================================================================================

A segment that is missing, or shorter than when it was sealed, is lost: it is reported, the index is reconciled, and copies of
its records are searched in the other segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal

import attrs

from msgstore.contract import RESCUED_KEY, Index, SegmentScan, StoreError
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state import checkpoint
from msgstore.engine.state.checkpoint import Row
from msgstore.engine.state.clean_shutdown import ShutdownFiles
from msgstore.locations import LIMIT, MASK, NUMBER_SHIFT

log = logging.getLogger("msgstore.recovery")

SegmentAndScan = tuple[Segment, SegmentScan]
"""A segment and its records."""
CountsFrom = Literal["index", "given", "msg_store_index.ets", "msg_store_index.ets in part", "one each"]
CHAIN = 2
"""Records in a row after a torn end that make it damage instead of a write that was cut off."""

RecoveryProgress = Callable[[int, int], object]
"""Called with (bytes done, bytes in all) of the segments that have to be read. Begins again at 0 if an index that was being
checked turns out to be wrong. If it raises, the store does not open."""


@attrs.frozen
class LostSegment:
    """A segment of which there is less than the index knows."""

    file: str
    """Its name."""
    found: int | None
    """Bytes that are there; None if the file is missing."""
    size: int
    """Bytes that were there."""
    messages: int
    """Live messages that the index has in it."""

    @property
    def reason(self) -> str:
        return "missing" if self.found is None else "shortened" if self.found < self.size else "replaced"

    def __str__(self) -> str:
        shortened = f"has {self.found} of {self.size} bytes"
        what = {"missing": "is missing", "shortened": shortened, "replaced": "is not the file that it was"}[self.reason]
        return f"{what}; the index has {self.messages} live messages in it"


@attrs.define
class Recovery:
    """How a store came up; ``store.stats().recovery``."""

    how: Literal["new", "trust", "tail", "reconciled", "rebuild", "taken over", "live"] = "new"
    """``new``: there was nothing; ``trust``, ``tail``, ``reconciled``, ``rebuild``, ``taken over``: what was read, see the life
    of a message; ``live``: a reader beside a writer."""
    scanned: list[str] = attrs.field(factory=list)
    """Names of the segments that were read, in whole or from their last commit on."""
    hinted: list[str] = attrs.field(factory=list)
    """Names of the segments whose hint was read instead."""
    entered: int = 0
    """Records that were found by scanning, or in hints, and are live."""
    garbage: int = 0
    """Records that were found so, and that no reference count names, or that are copies."""
    missing: int = 0
    """Ids that the given reference counts name, or the index of a store that has lost a segment, and that no segment holds."""
    first_missing: bytes | None = None
    """One of these, or None if there are none."""
    kept: int = 0
    """Messages that keep the counts of a saved index which does not fit the directory."""
    revived: int = 0
    """Messages that are live again, with one reference, and may have been removed before: the index had them as removed, or
    does not know their segment."""
    distrust: str | None = None
    """Why the saved counts were not taken as they were; None if they were, or if there were none."""
    copy: str | None = None
    """Name of the file in the store's directory that has the counts of before; None if none had to be kept."""
    damaged: list[str] = attrs.field(factory=list)
    """One line for each damaged segment: file, offset, reason. Then those that are ``lost``."""
    lost: list[LostSegment] = attrs.field(factory=list)
    """Segments that are missing, or shorter than they were."""
    counts: CountsFrom = "index"
    """Where the reference counts come from: `index`; `given`: by the caller; `msg_store_index.ets`: as a broker saved them;
    `msg_store_index.ets in part`: of the entries that agree with a record, and one for each other record; `one each`."""

    @property
    def counts_are_kept(self) -> bool:
        """True if every message has the count that was saved. False after a rebuild, except with the exact counts of a broker,
        and if records are missing or were revived."""
        if self.how == "rebuild":
            return self.counts == "msg_store_index.ets"
        return not (self.how == "reconciled" and (self.missing or self.revived))


@attrs.frozen
class RecoveryPlan:
    """Work that is needed before an index can be used, or the reason why it cannot be used."""

    refusal: str | None = None
    """Why the index cannot be trusted, if it cannot."""
    rows: Mapping[str, Row] = attrs.field(factory=dict)
    """Row of each segment in the saved state; empty if the state is damaged."""
    is_damaged: bool = False
    """True if any entry may be wrong, whatever the rows say."""
    tails: list[tuple[Segment, int]] = attrs.field(factory=list)
    """Segments to read from an offset on."""
    verify: list[Segment] = attrs.field(factory=list)
    """Segments whose modification time has changed, but not their size: to compare with the index."""
    lost: list[LostSegment] = attrs.field(factory=list)
    """Segments of which there is less than the index knows."""


def compare_with_index(state: Mapping[bytes, bytes], segments: Segments, shutdown_files: ShutdownFiles) -> RecoveryPlan:
    """Compare the saved ``state`` of an index with the segments.

    A program that ran in between is recognised by sizes, names, another ``clean.dot``, or RabbitMQ's saved index. If one of the
    latter two shows it, no segment counts as lost: that program may have deleted and truncated segments. If ``clean.dot`` is
    hidden, records may have been appended (:mod:`msgstore.engine.state.clean_shutdown`).
    """
    if state.get(checkpoint.LAYOUT_KEY) != checkpoint.LAYOUT:
        return RecoveryPlan("none was saved, or it is not complete, or of another version")
    try:
        rows = checkpoint.rows(state)
    except ValueError as error:
        return RecoveryPlan(str(error))
    saved = state.get(checkpoint.CLEAN_KEY)
    if shutdown_files.foreign:
        return RecoveryPlan("RabbitMQ has saved one of its own since", rows)
    if RESCUED_KEY in state:
        return RecoveryPlan("it is damaged, and each entry is compared with its record", rows, is_damaged=True)
    if not (shutdown_files.clean is None if saved is None else saved in (shutdown_files.clean, shutdown_files.pending)):
        return RecoveryPlan("clean.dot is not the one that was left with it: damage, or another program", rows)
    plan, refusals = RecoveryPlan(rows=rows), []
    is_hidden = saved is not None and shutdown_files.clean is None
    newest = max((segment.number for segment in segments if segment.path.name in rows), default=-1)
    names = {segment.path.name: segment for segment in segments}
    for name, row in rows.items():
        segment = names.pop(name, None)
        if segment is None:
            if row.live_count:  # one without live messages may have been deleted just before a crash
                plan.lost.append(LostSegment(name, None, row.size, row.live_count))
            continue
        segment.live_count, segment.live_bytes = row.live_count, row.live_bytes
        segment.appendable, segment.quarantined = row.appendable, row.quarantined
        has_grown = segment.size > row.size
        if row.compacting:
            plan.verify.append(segment)
            refusals += [f"{name} has grown while it was compacted"] * has_grown
        elif segment.size < row.size:
            plan.lost.append(LostSegment(name, segment.size, row.size, row.live_count))
        elif row.mtime_ns is None or (has_grown and is_hidden and segment.number == newest and row.appendable):
            plan.tails.append((segment, row.size))
        elif has_grown:
            refusals.append(f"{name} has grown since it was sealed")
        elif segment.sealed_mtime_ns != row.mtime_ns:
            plan.verify.append(segment)
    is_closed = saved is not None and not is_hidden
    refusals += [f"{name} is new" for name, segment in names.items() if is_closed or segment.number < newest]
    plan.tails.extend((segment, 0) for segment in names.values())
    return attrs.evolve(plan, refusal="; ".join(refusals[:5]) or None)


@attrs.frozen(eq=False)
class RecoveryRun:
    """State that the steps of one recovery share."""

    segments: Segments
    index: Index
    shutdown_files: ShutdownFiles
    counts: Mapping[bytes, int] | None
    """Reference counts given by the caller, which are better than those of an index that has to be repaired."""
    progress: RecoveryProgress | None
    keeps_copy: bool
    """True if the old counts are saved in a file before any of them changes."""
    recovery: Recovery = attrs.field(factory=Recovery)
    """Result, completed by each step."""

    def metered(self, todo: Iterable[Segment]) -> Iterator[Segment]:
        """Yield segments, and report the bytes of those that are done."""
        sized = [(segment, segment.size) for segment in todo]
        done, total = 0, sum(size for _, size in sized)
        if self.progress and total:
            self.progress(0, total)
        for segment, size in sized:
            yield segment
            done += size
            if self.progress:
                self.progress(done, total)

    def scan(self, segment: Segment, start: int = 0) -> SegmentScan:
        """Read a segment from ``start`` on; notes on it, and in the result, what state it is in."""
        segments, recovery = self.segments, self.recovery
        with segments.errors(segment), segments.files.view(segment.path) as data:
            scan = segment.form.scan(data, start=start)
            end = scan.end
            with segment.form.attribute_errors("find_chain"):
                behind = None if end.state == "clean" else segment.form.format.find_chain(data, end.offset + 1, CHAIN)
            segment.size = len(data)
        if segment.size >= LIMIT:
            raise too_large(segment.path, segment.size)
        recovery.scanned.append(segment.path.name)
        segment.quarantined |= end.state == "corrupt" or bool(scan.damage) or behind is not None
        segment.torn = end.state == "torn"
        segment.appendable = end.state == "clean" and not segment.quarantined and scan.header in (None, "ok")
        spots = [(damage.offset, damage.reason) for damage in scan.damage]
        if end.state != "clean":
            spots.append((end.offset, end.reason or end.state))
        becomes = "the segment is damaged, and is never compacted"
        if not segment.quarantined:
            becomes = "a write was cut off; what stands before it is whole"
        for offset, reason in spots:
            recovery.damaged.append(f"{segment.path.name} at offset {offset}: {reason}")
            log.warning("%s at offset %d: %s: %s", segment.path, offset, reason, becomes)
            if segment.quarantined:
                segments.telemetry.damage(segment.path.name, offset, reason)
        return scan

    def count_live(self) -> None:
        """Count the live records and bytes of each segment by the index."""
        for segment in self.segments:
            segment.live_count = segment.live_bytes = 0
        for _, location, _ in self.index.items():
            segment = self.segments.by_number[location >> NUMBER_SHIFT]
            segment.live_count += 1
            segment.live_bytes += location & MASK


def places(scan: SegmentScan) -> Iterator[tuple[bytes, int, int]]:
    """Return (id, offset, size) of each record, copies included."""
    return ((i, offset, size) for i, offset, size, _ in chain(scan.records.rows(), scan.duplicates.rows()))


def too_large(path: Path, size: int) -> StoreError:
    return StoreError(f"{path}: has {size} bytes; segments of 1 TiB and more are not supported")
