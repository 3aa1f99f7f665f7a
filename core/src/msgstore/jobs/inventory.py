"""Job ``inventory``: measure any number of segments, and forecast what each GC policy would reclaim.

``scan_for_inventory`` reads one segment, in any process. If counts are given, the runner finds the live records: with
``live_of``, one segment after the other, or with a join by id. Otherwise the index of each store is asked. The driver does that
and runs the policies; both need numbers only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import attrs

from msgstore.contract import Capability, Damage, MsgStoreError, SegmentStats
from msgstore.contract.formats import split_ids
from msgstore.directory import SETTINGS
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.engine.opening import open_configured, remembered_config
from msgstore.engine.segment.segment import Segment
from msgstore.engine.store import Store
from msgstore.jobs.inputs import SegmentInput, SegmentJob, find_inputs, open_input
from msgstore.jobs.inventory_report import InventoryReport, PolicyStock, StoreStock
from msgstore.jobs.policy_forecast import PolicyInput, PolicyPlan, as_segment, forecast, make_policy_input
from msgstore.jobs.reading.count_files import named_counts
from msgstore.jobs.reading.segment_check import SegmentFindings, UnreadableSegmentError, measure, reading, unreadable
from msgstore.jobs.workers import installed
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet


@attrs.frozen
class InventoryJob(SegmentJob):
    """Picklable. Made and checked by :func:`plan_inventory`."""

    now: float
    """What the policies take for the time, in seconds since the epoch: the same for every engine."""
    counts: str | None = None
    """A file of counts (:mod:`msgstore.jobs.counts`), of all stores together."""


def plan_inventory(
    catalogue: Catalogue,
    sources: Sequence[Path],
    now: float,
    *,
    counts: Path | None = None,
    records: Mapping[str, int] | None = None,
) -> InventoryJob:
    """Read no segment. ``records`` binds record types beside those that the directories remember.

    Raises StoreError (no segments), ConfigError, PluginError.
    """
    found = find_inputs(catalogue, sources, records=records)
    return InventoryJob(tuple(map(str, sources)), found, now, named_counts(counts))


# -- one segment --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class ScannedSegment(SegmentFindings):
    """Scan result of one segment. Picklable; with ids 24 bytes a record."""

    appendable: bool = False
    torn: bool = False
    ids: bytes = b""
    """Of the records, by offset."""
    sizes: array[int] = attrs.field(factory=lambda: array("Q"))


def scan_for_inventory(item: SegmentInput, *, with_ids: bool) -> ScannedSegment | None:
    """Read one segment; None for one that a collector has deleted since it was listed. One that cannot be read is damage as a
    whole. Raises PluginError if a plugin is missing in this process."""
    try:
        with reading(item) as (_, _, report):
            found, segment, records = measure(item, report), as_segment(report, quarantined=False), report.scan.records
            ids, sizes = (bytes(records.ids), records.sizes) if with_ids else (b"", array("Q"))
            found.stock.quarantined = segment.quarantined
            return ScannedSegment(found.stock, found.damage, segment.appendable, segment.torn, ids, sizes)
    except UnreadableSegmentError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        found = unreadable(item, error)
        return ScannedSegment(found.stock, found.damage)


def live_of(stock: ScannedSegment, counts: Mapping[bytes, int], seen: set[bytes]) -> tuple[int, int]:
    """(records, bytes) that are alive: those that have references and stand in no segment of the store that came before, which
    ``seen`` remembers."""
    live = size_of_live = 0
    for msg_id, size in zip(split_ids(stock.ids), stock.sizes, strict=True):
        if counts.get(msg_id, 0) > 0 and msg_id not in seen:
            seen.add(msg_id)
            live += 1
            size_of_live += size
    return live, size_of_live


# -- all of them --------------------------------------------------------------------------------------------------------------


def report_of(
    job: InventoryJob, rows: Iterable[tuple[SegmentInput, ScannedSegment | None, tuple[int, int] | None]]
) -> InventoryReport:
    """``rows`` by rank, with what :func:`live_of` says of each segment if counts were given. Asks stores and policies."""
    report = InventoryReport(job.sources)
    job.found.add_to(report)
    for directory, group in groupby(rows, key=lambda row: row[0].store):
        stocks = []
        for item, scanned, live in group:
            if scanned is None:
                report.gone += 1
                continue
            report.add_damage(item.path, scanned.damage)
            scanned.stock.path = item.path  # workers have absolute paths
            if live is not None:
                scanned.stock.live, scanned.stock.live_bytes = live
            stocks.append((item, scanned))
        report.stores.append(_store(job, directory, stocks))
    return report


def _store(job: InventoryJob, directory: str, stocks: Sequence[tuple[SegmentInput, ScannedSegment]]) -> StoreStock:
    found = StoreStock(directory, [scanned.stock for _, scanned in stocks], "given" if job.counts is not None else "")
    catalogue = installed()
    if job.counts is None:
        own = _own_counts(Path(directory), catalogue, {Path(item.path).name: stock.damage for item, stock in stocks})
        if own is not None:
            found.counts = "own"
            for segment in found.segments:
                known = own.get(Path(segment.path).name)
                if known is not None:
                    segment.live, segment.live_bytes = known.live_count, known.live_bytes
                    segment.quarantined |= known.quarantined
    try:
        picture = _picture(Path(directory), catalogue, stocks)
    except MsgStoreError as error:
        found.unasked = str(error)
    except OSError as error:  # a name beside the segments that cannot be looked at: no store would open
        found.unasked = f"{error.filename or directory}: {error.strerror or error}"
    else:
        found.policies = [_policy(plan) for plan in forecast(catalogue, picture, job.now)]
    return found


def _own_counts(
    directory: Path, catalogue: Catalogue, damage: Mapping[str, Sequence[Damage]]
) -> dict[str, SegmentStats] | None:
    """Return the statistics of segments by file name, from an index that loads without reading them; None without one.

    Such an index is persistent, or was saved at a clean shutdown. Records in ``damage`` do not count as live.
    """
    try:
        if not (directory / SETTINGS).exists():
            return None
        config = remembered_config(directory)
        persistent = Capability.PERSISTENT in catalogue.index(config.index.name).capabilities
        if not persistent and not (directory / CLEAN).exists():
            return None
        with open_configured(config, catalogue, mode="r", live="beside") as store:
            if store.stats().recovery.counts_are_kept:
                return _less_damaged(store, damage)
    except (MsgStoreError, OSError):
        pass
    return None


def _less_damaged(store: Store, damage: Mapping[str, Sequence[Damage]]) -> dict[str, SegmentStats]:
    segments = list(store.segments())
    spans = {segment.number: edges_of(damage[segment.file]) for segment in segments if damage.get(segment.file)}
    lost: dict[int, list[int]] = {number: [] for number in spans}
    for entry in store.entries() if spans else ():
        if is_touched(spans.get(entry.number, ()), entry.offset, entry.size):
            lost[entry.number].append(entry.size)
    return {
        segment.file: attrs.evolve(
            segment,
            live_count=segment.live_count - len(lost.get(segment.number, ())),
            live_bytes=segment.live_bytes - sum(lost.get(segment.number, ())),
        )
        for segment in segments
    }


def edges_of(damage: Iterable[Damage]) -> list[int]:
    """Return begin and end of each damaged span in one list. Spans that meet are merged, empty ones left out."""
    edges: list[int] = []
    for begin, end in sorted((spot.offset, spot.offset + spot.size) for spot in damage if spot.size):
        if edges and begin <= edges[-1]:
            edges[-1] = max(edges[-1], end)
        else:
            edges += [begin, end]
    return edges


def is_touched(edges: Sequence[int], offset: int, size: int) -> bool:
    """Return True if any of these bytes is damaged."""
    passed = bisect_right(edges, offset)
    begins_in_damage = passed % 2 == 1
    return begins_in_damage or (passed < len(edges) and edges[passed] < offset + size)


def _picture(directory: Path, catalogue: Catalogue, stocks: Sequence[tuple[SegmentInput, ScannedSegment]]) -> PolicyInput:
    """Return what a policy would see. Records count as live if nothing else is known. Raises MsgStoreError."""
    segments = []
    for item, scanned in stocks:
        found, form = scanned.stock, open_input(item)
        live, size = (found.records, found.record_bytes) if found.live is None else (found.live, found.live_bytes or 0)
        segment = Segment(-1, Path(item.path), form, found.size, live, size)
        segment.appendable, segment.quarantined, segment.torn = scanned.appendable, found.quarantined, scanned.torn
        segments.append(segment)
    return make_policy_input(directory, catalogue, FormatSet(catalogue), segments)


def _policy(plan: PolicyPlan) -> PolicyStock:
    return PolicyStock(
        plan.name,
        plan.options,
        Counter(step.what for step in plan.steps),
        sum(step.gives_back for step in plan.steps),
        sum(step.messages_lost for step in plan.steps),
        len(plan.passed_over),
        [plan.error] if plan.error else [],
    )
