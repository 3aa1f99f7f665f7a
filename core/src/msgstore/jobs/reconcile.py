"""Job ``reconcile``: compare records with changes of reference counts, and find live, unreferenced and missing messages.

``read_intact`` returns the records of a segment, ``read_split`` the changes in a part of a file. The runner adds both up by id,
and each id belongs to one class (:data:`CLASSES`). Bodies are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Damage
from msgstore.jobs.counts import find_splits
from msgstore.jobs.inputs import SegmentInput, SegmentJob, find_inputs
from msgstore.jobs.output.staging_directory import check_destination
from msgstore.jobs.reading.splits import FileSplit
from msgstore.jobs.reports import Findings
from msgstore.jobs.workers import check_pyarrow
from msgstore.plugins.catalogue import Catalogue

CLASSES = {
    "live": "has references, and an intact record",
    "orphan": "has an intact record, and no reference: garbage",
    "dangling": "has references, and no intact record: a lost message",
    "negative": "has been removed more often than it was written",
    "settled": "has neither references nor a record",
}
WRITTEN = ("live", "orphan", "dangling", "negative")
"""Classes whose ids are written to files. Settled ids are only counted."""
NAMED = 100
"""Number of dangling and of negative ids that a report names, in the order of their bytes."""


@attrs.frozen
class ReconcileJob(SegmentJob):
    """Picklable. Made and checked by :func:`plan_reconcile`."""

    deltas: tuple[str, ...]
    """Files of changes, as given."""
    splits: tuple[FileSplit, ...]
    """Parts of these files, one per task."""
    to: str | None = None
    """Directory for the classes, or None."""

    @property
    def size(self) -> int:
        """Bytes of the segments, and of the changes."""
        return self.found.size + sum(split.size for split in self.splits)


def plan_reconcile(
    catalogue: Catalogue,
    sources: Sequence[Path],
    deltas: Sequence[Path],
    *,
    to: Path | None = None,
    records: Mapping[str, int] | None = None,
) -> ReconcileJob:
    """Return the job. Reads no segment and writes nothing. ``records`` overrides the bindings that the directories remember.

    Raises StoreError (no segments, ``to`` in use), StoreLocked, ConfigError (no pyarrow; no file of changes), PluginError.
    """
    check_pyarrow("reconcile is done")
    found = find_inputs(catalogue, sources, records=records, offline=True)
    if to is not None:
        check_destination(to, [*found.paths(sources), *deltas])
    splits = tuple(find_splits(deltas))
    return ReconcileJob(tuple(map(str, sources)), found, tuple(map(str, deltas)), splits, None if to is None else str(to))


@attrs.define
class ClassReport:
    ids: int = 0
    references: int = 0
    """Sum of their counts."""
    records: int = 0
    """Intact records, including copies of an id."""
    size: int = 0
    """Bytes of these records."""

    def add(self, part: ClassReport) -> None:
        """Add other ids of the class."""
        for name, number in attrs.asdict(part).items():
            setattr(self, name, getattr(self, name) + number)


@attrs.define
class ReconcileReport(Findings):
    """Result of a reconciliation, the same with every runner."""

    sources: tuple[str, ...]
    deltas: tuple[str, ...]
    segments: int
    size: int
    """Bytes of the segments."""
    changes: int = 0
    """Number of lines and rows in the files of changes."""
    classes: dict[str, ClassReport] = attrs.field(factory=lambda: {name: ClassReport() for name in CLASSES})
    named: dict[str, list[tuple[bytes, int]]] = attrs.field(factory=lambda: {"dangling": [], "negative": []})
    """(id, count) of the first few of a class, by id."""

    def name(self, which: str, ids: Iterable[tuple[bytes, int]]) -> None:
        """Keep the first ids of a class."""
        self.named[which] = sorted([*self.named[which], *ids])[:NAMED]

    def add(self, part: ReconcileReport) -> None:
        """Add the classes of other ids."""
        for name, found in part.classes.items():
            self.classes[name].add(found)
        for name, ids in part.named.items():
            self.name(name, ids)

    @property
    def agrees(self) -> bool:
        """Return True if nothing is damaged, missing or miscounted. There may be garbage."""
        return not (self.damage or self.classes["dangling"].ids or self.classes["negative"].ids)

    def as_json(self) -> dict[str, Any]:
        return self.summary(
            sources=list(self.sources),
            deltas=list(self.deltas),
            segments=self.segments,
            size=self.size,
            changes=self.changes,
            classes={name: attrs.asdict(found) for name, found in self.classes.items()},
            damaged=self.damaged,
        )

    def named_as_json(self) -> Iterator[dict[str, Any]]:
        for name, rows in self.named.items():
            for msg_id, count in rows:
                yield {"kind": name, "id": msg_id.hex(), "count": count}


def report_of(job: ReconcileJob, damage: Iterable[tuple[SegmentInput, Sequence[Damage]]], changes: int) -> ReconcileReport:
    """Return a report without classes. ``damage``: damaged spans of each segment, by rank.

    Raises StoreError if a writer has opened a store since the job was planned.
    """
    report = ReconcileReport(job.sources, job.deltas, len(job.found.inputs), job.size, changes)
    job.found.add_to(report)
    for item, spans in damage:
        report.add_damage(item.path, spans)
    job.found.check_no_writer_since()
    return report
