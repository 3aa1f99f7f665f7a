"""Which records of a sorted list are read together."""

from __future__ import annotations

from collections.abc import Iterator

from msgstore.contract.locations import unpack_location

MERGE_GAP = 4096
"""Records of one segment that are at most this many bytes apart are read together ..."""
MERGE_LIMIT = 2**20
"""... up to this many bytes at once."""


def coalesce_reads(located: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Group sorted locations into runs that one read serves."""
    run: list[tuple[int, bytes]] = []
    run_number = run_start = run_end = 0
    for location, msg_id in located:
        number, offset, size = unpack_location(location)
        if run and not (number == run_number and offset - run_end <= MERGE_GAP and offset + size - run_start <= MERGE_LIMIT):
            yield run
            run = []
        if not run:
            run_number, run_start = number, offset
        run.append((location, msg_id))
        run_end = offset + size
    if run:
        yield run
