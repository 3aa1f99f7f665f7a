"""Comparing on one machine: processes hash bodies, this one has the ids and the hashes of one side in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgstore.contract import Damage
from msgstore.contract.formats import split_ids
from msgstore.jobs.diff import DIGEST, DiffJob, DiffReport, Digests, digest, side_of
from msgstore.jobs.inputs import Found, SegmentInput
from msgstore.jobs.local.processes import Run, map_segments, task_runner
from msgstore.jobs.tasks import pack

Task = tuple[SegmentInput, ...]
_SAME, _DIFFERING, _ONLY_B = b"same", b"differing", b"only_b"
"""What stands in place of a hash of the first side, once the second has been asked."""


def diff(job: DiffJob, processes: int, add: Callable[[int], object]) -> DiffReport:
    """``add`` is told of bytes that were read."""
    first: dict[bytes, bytes] = {}
    with task_runner(processes, max(len(pack(job.found_a.inputs)), len(pack(job.found_b.inputs)))) as run:
        a = side_of(job.a, job.found_a, _each(job.found_a, run, add, lambda found: _take(first, found)))
        a.messages = len(first)
        b = side_of(job.b, job.found_b, _each(job.found_b, run, add, lambda found: _compare(first, found)))
    report = DiffReport(a, b)
    of = {_DIFFERING: report.ids["differing"], _ONLY_B: report.ids["only_b"]}
    for msg_id, verdict in first.items():
        if verdict is _SAME:
            report.same += 1
        else:
            of.get(verdict, report.ids["only_a"]).append(msg_id)
    b.messages = len(first) - len(report.ids["only_a"])
    for ids in report.ids.values():
        ids.sort()
    return report


def _each(
    found: Found, run: Run[Task, list[Digests]], add: Callable[[int], object], use: Callable[[Digests], None]
) -> Iterator[tuple[SegmentInput, tuple[Damage, ...]]]:
    for item, result in map_segments(run, digest, pack(found.inputs), add):
        use(result)
        yield item, result.damage


def _take(first: dict[bytes, bytes], found: Digests) -> None:
    for msg_id, its_hash in _rows(found):
        first.setdefault(msg_id, its_hash)


def _compare(first: dict[bytes, bytes], found: Digests) -> None:
    """Compare the sides. Of copies the first one counts."""
    for msg_id, its_hash in _rows(found):
        theirs = first.get(msg_id, _ONLY_B)
        if len(theirs) == DIGEST:
            first[msg_id] = _SAME if theirs == its_hash else _DIFFERING
        elif theirs is _ONLY_B:
            first[msg_id] = _ONLY_B


def _rows(found: Digests) -> Iterator[tuple[bytes, bytes]]:
    return zip(split_ids(found.ids), split_ids(found.digests), strict=True)
