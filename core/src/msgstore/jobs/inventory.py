"""Job ``inventory``: measure any number of segments, and forecast what each GC policy would reclaim.

``check_segment`` reads one segment, in any process. If counts are given, the runner finds the live records: with ``live_of``,
one segment after the other, or with a join by id. Otherwise the index of each store is asked. The driver does that and runs
the policies; both need numbers only. The report is the same with every runner. Sizes are in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Capability, Columns, MsgStoreError, SegmentStats
from msgstore.directory import has_settings
from msgstore.engine.opening import open_configured, remembered_config
from msgstore.engine.segment.segment import Segment
from msgstore.engine.state.clean_shutdown import CLEAN
from msgstore.jobs.counts import named_counts, sums_of
from msgstore.jobs.inputs import SegmentInput, SegmentJob, find_inputs, open_input
from msgstore.jobs.policy_forecast import PolicyPlan, forecast, make_policy_input
from msgstore.jobs.reading.segment_check import SegmentFindings, check_segment
from msgstore.jobs.reports import Findings, ScannedSegment, sums
from msgstore.jobs.tasks import ProgressMeter, Run, Task, group_into_tasks, map_segments
from msgstore.jobs.workers import worker_catalogue
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet


@attrs.frozen
class InventoryJob(SegmentJob):
    """Picklable. Made and checked by :func:`plan_inventory`."""

    now: float
    """Time for the policies, in seconds since the epoch: the same with every runner."""
    counts: str | None = None
    """A file of counts (:mod:`msgstore.jobs.counts`), of all stores together."""
    policies: tuple[Backend, ...] = ()
    """GC policies to ask beside those of the examples."""


def plan_inventory(
    catalogue: Catalogue,
    sources: Sequence[Path],
    now: float,
    *,
    counts: Path | None = None,
    records: Mapping[str, int] | None = None,
    policies: Iterable[Backend] = (),
) -> InventoryJob:
    """Read no segment. ``records`` binds record types beside those that the directories remember. ``policies`` are asked beside
    every installed one with its examples.

    Raises StoreError (no segments), ConfigError, PluginError.
    """
    found = find_inputs(catalogue, sources, records=records)
    return InventoryJob(tuple(map(str, sources)), found, now, named_counts(counts), tuple(policies))


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class ScannedStore:
    """One directory."""

    path: str
    segments: list[ScannedSegment]
    """By rank: the youngest first."""
    counts: str = ""
    """Source of the reference counts: ``given``, the store's ``own``, or "" if they are not known."""
    policies: list[PolicyPlan] = attrs.field(factory=list)
    unasked: str = ""
    """Reason why no policy was asked, or ""."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "store",
            **{name: getattr(self, name) for name in ("path", "counts", "unasked")},
            **totals(self.segments),
            "policies": sum_forecasts([self]),
        }


@attrs.define
class InventoryReport(Findings):
    sources: tuple[str, ...]
    stores: list[ScannedStore] = attrs.field(factory=list)
    gone: int = 0
    """Segments that a collector deleted between being listed and being read."""

    def segments(self) -> Iterator[ScannedSegment]:
        for store in self.stores:
            yield from store.segments

    def policies(self) -> list[dict[str, Any]]:
        """Return the forecasts of all stores together, in the order of the first store."""
        return sum_forecasts(self.stores)

    def as_json(self) -> dict[str, Any]:
        return self.summary(
            sources=list(self.sources),
            stores=len(self.stores),
            **totals(self.segments()),
            policies=self.policies(),
            gone=self.gone,
        )


def sum_forecasts(stores: Iterable[ScannedStore]) -> list[dict[str, Any]]:
    """Return the forecast of each policy and set of options: the number of each step, and the bytes that all of them free."""
    plans: dict[tuple[str, str], list[PolicyPlan]] = {}
    for plan in (plan for store in stores for plan in store.policies):
        plans.setdefault((plan.name, plan.options), []).append(plan)
    rows = []
    for (name, options), found in plans.items():
        steps = [step for plan in found for step in plan.steps]
        rows.append({
            "name": name, "options": options, "steps": Counter(step.what for step in steps),
            **sums(steps, "gives_back", "messages_lost"),
            "passed_over": sum(len(plan.passed_over) for plan in found),
            "errors": [plan.error for plan in found if plan.error],
        })  # fmt: skip
    return rows


def totals(segments: Iterable[ScannedSegment]) -> dict[str, Any]:
    """Return the sums over segments.

    ``live`` and ``live_bytes`` are None unless they are known of every segment. ``fragmentation`` is the garbage divided by the
    bytes after the headers.
    """
    found = list(segments)
    types: Counter[str] = Counter()
    for one in found:
        types.update(one.types)
    is_known = all(one.live is not None for one in found)
    used = sum(one.used for one in found)
    total = sums(found, "holes", "hole_bytes", "duplicates", "duplicate_bytes", "damaged", "garbage")
    return {
        "segments": len(found),
        **sums(found, "size", "records", "record_bytes"),
        "types": dict(sorted(types.items())),
        **(sums(found, "live", "live_bytes") if is_known else {"live": None, "live_bytes": None}),
        **total,
        "fragmentation": round(total["garbage"] / used, 4) if used else 0.0,
        "formats": dict(sorted(Counter(one.format for one in found).items())),
        "states": dict(sorted(Counter(one.state for one in found).items())),
    }


# -- all of them --------------------------------------------------------------------------------------------------------------


def inventory(job: InventoryJob, run: Run[Task, list[SegmentFindings]], meter: ProgressMeter) -> InventoryReport:
    """Execute a job. ``run`` executes the tasks that read segments. With counts, the ids of a store are in this process's
    memory."""
    counts = None if job.counts is None else sums_of(job.counts)

    def rows() -> Iterator[tuple[SegmentInput, SegmentFindings]]:
        store, seen = "", set[bytes]()
        scanned = map_segments(
            run, partial(check_segment, with_records=counts is not None), group_into_tasks(job.found.inputs), meter
        )
        for item, found in scanned:
            if item.store != store:
                store, seen = item.store, set()
            if counts is not None:
                found.segment.live, found.segment.live_bytes = live_of(found.records, counts, seen)
            yield item, attrs.evolve(found, records=Columns())

    return report_of(job, rows())


def live_of(records: Columns, counts: Mapping[bytes, int], seen: set[bytes]) -> tuple[int, int]:
    """Return (records, bytes) of the live records of a segment: those with references, if no segment before has the same id.

    ``seen``: ids of the store's segments before, which this call extends.
    """
    live = size_of_live = 0
    for msg_id, size in zip(records.id_list(), records.sizes, strict=True):
        if counts.get(msg_id, 0) > 0 and msg_id not in seen:
            seen.add(msg_id)
            live += 1
            size_of_live += size
    return live, size_of_live


def report_of(job: InventoryJob, rows: Iterable[tuple[SegmentInput, SegmentFindings]]) -> InventoryReport:
    """Return the report of the job. Asks indexes and policies.

    ``rows``: segments by rank, with their live records if counts were given. Segments that are gone are only counted.
    """
    report = InventoryReport(job.sources)
    job.found.add_to(report)
    for directory, group in groupby(rows, key=lambda row: row[0].store):
        listed = list(group)
        there = [(item, found) for item, found in listed if not found.is_gone]
        report.gone += len(listed) - len(there)
        for item, found in there:
            report.add_damage(item.path, found.damage)
            found.segment.path = item.path  # workers have absolute paths
        report.stores.append(_store(job, directory, there))
    return report


def _store(job: InventoryJob, directory: str, rows: Sequence[tuple[SegmentInput, SegmentFindings]]) -> ScannedStore:
    catalogue = worker_catalogue()
    own = _own_counts(Path(directory), catalogue) if job.counts is None else None
    counts = "given" if job.counts is not None else "" if own is None else "own"
    store = ScannedStore(directory, [found.segment for _, found in rows], counts)
    for segment in store.segments:
        known = (own or {}).get(Path(segment.path).name)
        if known is not None:  # of a damaged segment, it also counts records that no scan finds
            segment.live = min(known.live_count, segment.records)
            segment.live_bytes = min(known.live_bytes, segment.record_bytes)
            segment.quarantined |= known.quarantined
    try:
        segments = [_as_segment(item, found) for item, found in rows]
        picture = make_policy_input(Path(directory), catalogue, FormatSet(catalogue), segments)
    except MsgStoreError as error:
        store.unasked = str(error)
    except OSError as error:  # of a name next to the segments: no store would open
        store.unasked = f"{error.filename or directory}: {error.strerror or error}"
    else:
        store.policies = list(forecast(catalogue, picture, job.now, job.policies))
    return store


def _as_segment(item: SegmentInput, found: SegmentFindings) -> Segment:
    """Return a segment as the engine would see it. Records count as live if nothing else is known."""
    segment = found.segment
    live = segment.records if segment.live is None else segment.live
    live_bytes = segment.record_bytes if segment.live_bytes is None else segment.live_bytes
    appendable = not (found.damage or segment.quarantined)
    return Segment(
        -1, Path(item.path), open_input(item), segment.size, live, live_bytes,
        appendable=appendable, quarantined=segment.quarantined, torn=segment.state == "torn",
    )  # fmt: skip


def _own_counts(directory: Path, catalogue: Catalogue) -> dict[str, SegmentStats] | None:
    """Return the statistics of segments by file name, from an index that loads without reading them; None without one.

    Such an index is persistent, or was saved at a clean shutdown.
    """
    try:
        if not has_settings(directory):
            return None
        config = remembered_config(directory)
        persistent = Capability.PERSISTENT in catalogue.index(config.index.name).capabilities
        if not persistent and not (directory / CLEAN).exists():
            return None
        with open_configured(config, catalogue, mode="r", live="beside") as store:
            return {one.file: one for one in store.segments()} if store.stats().recovery.counts_are_kept else None
    except (MsgStoreError, OSError):
        return None
