"""Job ``diff``: find the messages that only one of two stores, or trees of stores, has, and those whose bodies differ.

``digest`` hashes the bodies of the intact records of one segment, in any process. Of several copies of an id in one store, the
first by rank and offset counts, as in a salvage. Stored bodies are compared, not record types or segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import Buffer
from msgstore.contract.formats import split_ids
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore.jobs.not_read import NotRead
from msgstore.jobs.reading.segment_check import IntactRecords, intact_records, read_intact
from msgstore.jobs.reports import Findings
from msgstore.jobs.sources import find_offline
from msgstore.jobs.tasks import Meter, Run, Task, map_segments, pack
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import OpenFormat

DIGEST = 16
"""Bytes of a BLAKE2b hash. Two different bodies have the same hash with a probability of 2 to the power -128."""
KINDS = ("differing", "only_a", "only_b")


@attrs.frozen
class DiffJob:
    """Picklable. Made and checked by :func:`plan_diff`."""

    a: str
    b: str
    """Paths as given."""
    found_a: Found
    found_b: Found

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return self.found_a.size + self.found_b.size


def plan_diff(catalogue: Catalogue, a: Path, b: Path, *, records: Mapping[str, int] | None = None) -> DiffJob:
    """Read no segment. ``records`` binds record types beside those that the directories remember.

    Raises StoreError (no segments), StoreLocked, ConfigError, PluginError.
    """
    found_a, found_b = (find_offline(catalogue, [path], records) for path in (a, b))
    return DiffJob(str(a), str(b), found_a, found_b)


# -- one segment --------------------------------------------------------------------------------------------------------------


def digest(item: SegmentInput) -> IntactRecords:
    """Hash the bodies of one segment. A segment that cannot be read is one damaged span. Raises PluginError."""
    return read_intact(item, _with_digests)


def _with_digests(form: OpenFormat, data: Buffer) -> IntactRecords:
    good, decode = intact_records(form, data), form.format.decode
    digests = (
        blake2b(decode(msg_id, data[offset : offset + size]), digest_size=DIGEST).digest()
        for msg_id, offset, size, _ in good.records.rows()
    )
    return attrs.evolve(good, digests=b"".join(digests))


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class Side(Findings):
    path: str
    segments: int
    size: int
    """Bytes of the segments."""
    messages: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("path", "segments", "size", "messages")},
            "damaged_spans": len(self.damage),
        }


@attrs.define
class DiffReport:
    """Result of a comparison, the same with every runner."""

    a: Side
    b: Side
    same: int = 0
    """Number of messages with the same body in both."""
    ids: dict[str, list[bytes]] = attrs.field(factory=lambda: {kind: [] for kind in KINDS})
    """Sorted ids of the others: ``differing`` bodies, ``only_a``, ``only_b``."""

    @property
    def agrees(self) -> bool:
        """Return True if both sides have the same messages, and no damage that may hide another one."""
        return not (any(self.ids.values()) or self.a.damage or self.b.damage)

    @property
    def not_read(self) -> list[NotRead]:
        """Return the files of both sides that were not read."""
        return [*self.a.not_read, *self.b.not_read]

    def as_json(self) -> dict[str, Any]:
        counts = {kind: len(found) for kind, found in self.ids.items()}
        return {"kind": "summary", "a": self.a.as_json(), "b": self.b.as_json(), "same": self.same, **counts}

    def rows_as_json(self) -> Iterator[dict[str, Any]]:
        for kind, found in self.ids.items():
            for msg_id in found:
                yield {"kind": kind, "id": msg_id.hex()}


def side_of(path: str, found: Found, damage: Iterable[tuple[SegmentInput, IntactRecords]]) -> Side:
    """Return a side in which no message is counted yet. ``damage`` is by rank."""
    side = Side(path, len(found.inputs), found.size)
    found.add_to(side)
    for item, good in damage:
        side.add_damage(item.path, good.damage)
    return side


# -- on one machine -----------------------------------------------------------------------------------------------------------

_SAME, _DIFFERING, _ONLY_B = b"same", b"differing", b"only_b"
"""Results of a comparison. Each replaces the hash of the first side when the second side has the id."""


def diff(job: DiffJob, run: Run[Task, list[IntactRecords]], meter: Meter) -> DiffReport:
    """Execute a job. ``run`` executes the tasks that read segments; ids and hashes of one side are in this process's memory."""
    first: dict[bytes, bytes] = {}

    def each(
        found: Found, use: Callable[[Iterable[tuple[bytes, bytes]]], None]
    ) -> Iterator[tuple[SegmentInput, IntactRecords]]:
        for item, good in map_segments(run, digest, pack(found.inputs), meter):
            use(zip(good.records.id_list(), split_ids(good.digests), strict=True))
            yield item, good

    def take(found: Iterable[tuple[bytes, bytes]]) -> None:
        for msg_id, its_hash in found:
            first.setdefault(msg_id, its_hash)

    def compare(found: Iterable[tuple[bytes, bytes]]) -> None:
        """Compare messages with the other side. Only the first copy of an id counts."""
        for msg_id, its_hash in found:
            theirs = first.setdefault(msg_id, _ONLY_B)
            if len(theirs) == DIGEST:
                first[msg_id] = _SAME if theirs == its_hash else _DIFFERING

    a = side_of(job.a, job.found_a, each(job.found_a, take))
    a.messages = len(first)
    report = DiffReport(a, side_of(job.b, job.found_b, each(job.found_b, compare)))
    of = {_DIFFERING: report.ids["differing"], _ONLY_B: report.ids["only_b"]}
    for msg_id, verdict in first.items():
        if verdict is _SAME:
            report.same += 1
        else:
            of.get(verdict, report.ids["only_a"]).append(msg_id)
    report.b.messages = len(first) - len(report.ids["only_a"])
    for ids in report.ids.values():
        ids.sort()
    return report
