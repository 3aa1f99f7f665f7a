"""Reconciling records with changes of reference counts: which messages are alive, garbage, or referred to and not there.

What an id passes: ``read_intact`` finds the records of its segment, ``read_share`` the changes of its count; the engine adds both
up by id, and each id is of one class (:data:`CLASSES`). Bodies are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from msgstore.contract import Damage
from msgstore.jobs.columns.arrow import check_pyarrow
from msgstore.jobs.inputs import Found, SegmentInput, find_inputs
from msgstore.jobs.not_read import NotRead
from msgstore.jobs.output.commit import check_destination
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.sources import directories_of
from msgstore.plugins.catalogue import Catalogue
from msgstore.writer_lock import check_no_writer

if TYPE_CHECKING:
    from msgstore.jobs.deltas import Share

CLASSES = {
    "live": "has references, and a good record",
    "orphan": "has a good record, and no reference: garbage",
    "dangling": "has references, and no good record: a lost message",
    "negative": "has been removed more often than it was written",
    "settled": "has neither references nor a record",
}
WRITTEN = ("live", "orphan", "dangling", "negative")
"""The classes whose ids are written out; settled ones are only counted."""
NAMED = 100
"""Dangling and negative ids that a report names: those that come first as bytes."""


@attrs.frozen
class ReconcileJob:
    """Picklable. Made and checked by :func:`plan_reconcile`."""

    sources: tuple[str, ...]
    """As they were given."""
    deltas: tuple[str, ...]
    """Files of changes, as they were given."""
    found: Found
    shares: tuple[Share, ...]
    """What the files of changes are read in."""
    to: str | None = None
    """The directory that the classes are written to."""

    @property
    def size(self) -> int:
        """Bytes of the segments, and of the changes."""
        return sum(item.size for item in self.found.inputs) + sum(share.size for share in self.shares)


def plan_reconcile(
    catalogue: Catalogue,
    sources: Sequence[Path],
    deltas: Sequence[Path],
    *,
    to: Path | None = None,
    records: Mapping[str, int] | None = None,
) -> ReconcileJob:
    """Read no segment, write nothing. ``records`` binds record types beside those that the directories remember.

    Raises StoreError (no segments, ``to`` in use), StoreLocked, ConfigError (no pyarrow; no file of changes), PluginError.
    """
    check_pyarrow("reconcile")
    from msgstore.jobs.deltas import find_shares

    found = find_inputs(catalogue, sources, records=records)
    for store in sorted({item.store for item in found.inputs}):
        check_no_writer(Path(store))
    if to is not None:
        check_destination(to, [*directories_of(sources, found), *deltas])
    return ReconcileJob(
        tuple(map(str, sources)),
        tuple(map(str, deltas)),
        found,
        tuple(find_shares(deltas)),
        None if to is None else str(to),
    )


@attrs.define
class ClassReport:
    name: str
    ids: int = 0
    references: int = 0
    """The sum of their counts."""
    records: int = 0
    """Good ones, copies of an id included."""
    size: int = 0
    """Bytes of these records."""

    def as_json(self) -> dict[str, Any]:
        return {"ids": self.ids, "references": self.references, "records": self.records, "size": self.size}


@attrs.define
class ReconcileReport:
    """The same from every engine."""

    sources: tuple[str, ...]
    deltas: tuple[str, ...]
    segments: int
    size: int
    """Bytes of the segments."""
    changes: int = 0
    """Lines and rows of the files of changes."""
    classes: dict[str, ClassReport] = attrs.field(factory=lambda: {name: ClassReport(name) for name in CLASSES})
    named: dict[str, list[tuple[bytes, int]]] = attrs.field(factory=lambda: {"dangling": [], "negative": []})
    """(id, count) of the first few of a class, by id."""
    damage: list[SpanReport] = attrs.field(factory=list)
    ignored: list[str] = attrs.field(factory=list)
    """Files beside the segments that are none of an installed format, and were left out."""
    not_read: list[NotRead] = attrs.field(factory=list)
    """What was recognised in broker's directories, and not read."""

    def name(self, which: str, ids: Iterable[tuple[bytes, int]]) -> None:
        """Of those of a class that were named so far, and these, the first."""
        self.named[which] = sorted([*self.named[which], *ids])[:NAMED]

    def add(self, part: ReconcileReport) -> None:
        """The classes of other ids."""
        for name, found in part.classes.items():
            mine = self.classes[name]
            mine.ids += found.ids
            mine.references += found.references
            mine.records += found.records
            mine.size += found.size
        for name, ids in part.named.items():
            self.name(name, ids)

    @property
    def agrees(self) -> bool:
        """Whether nothing is damaged, missing, or counted wrong. Garbage is nothing wrong."""
        return not (self.damage or self.classes["dangling"].ids or self.classes["negative"].ids)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "summary",
            "sources": list(self.sources),
            "deltas": list(self.deltas),
            "segments": self.segments,
            "size": self.size,
            "changes": self.changes,
            "classes": {name: found.as_json() for name, found in self.classes.items()},
            "damaged_spans": len(self.damage),
            "damaged": sum(spot.size for spot in self.damage),
            "ignored": self.ignored,
        }

    def named_as_json(self) -> Iterator[dict[str, Any]]:
        for name, rows in self.named.items():
            for msg_id, count in rows:
                yield {"kind": name, "id": msg_id.hex(), "count": count}


def report_of(job: ReconcileJob, damage: Iterable[tuple[SegmentInput, Sequence[Damage]]], changes: int) -> ReconcileReport:
    """One in which no class is counted yet. ``damage`` by rank."""
    report = ReconcileReport(job.sources, job.deltas, len(job.found.inputs), job.size, changes)
    report.ignored += job.found.ignored
    report.damage += job.found.damage
    report.not_read += job.found.not_read
    for item, spots in damage:
        report.damage += [SpanReport(item.path, spot.offset, spot.size, spot.reason) for spot in spots]
    return report
