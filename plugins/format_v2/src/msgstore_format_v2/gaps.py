"""Writes that move records into the gaps of a v2 segment and keep the chain of records whole at every instant."""

from __future__ import annotations

from collections.abc import Sequence

from msgstore.contract import GapFill
from msgstore_format_v2.grammar import HOLE_SIZE, RECORD_SIZE, hole_head

_SECTOR = 512
"""Bytes that a disk writes atomically, at least."""


def gap_room(offset: int, size: int) -> int:
    """Return ``size``, or 0 if no record fits or the gap's first five bytes span two sectors and could be torn."""
    straddles = offset % _SECTOR > _SECTOR - HOLE_SIZE
    return 0 if straddles or size < RECORD_SIZE else size


def fill_gap(offset: int, size: int, records: Sequence[bytes]) -> GapFill:
    """Return the writes that put ``records`` into the gap; none if there are no records.

    First the gap becomes one HOLE, and a scan skips its inside. Then everything but the type and size of the first record is
    written. Those five bytes come last: they replace the HOLE with the records and a smaller hole. All writes together have
    at most 10 bytes more than the records.
    """
    if not records:
        return GapFill()
    run = b"".join(records)
    room = gap_room(offset, size)
    if len(run) > room:
        raise ValueError(f"the gap of {size} bytes at {offset} has room for {room} bytes of records, not for {len(run)}")
    inside = run[HOLE_SIZE:] + hole_head(size - len(run))
    return GapFill(
        prepare=[(offset, hole_head(size))],
        inside=[(offset + HOLE_SIZE, inside)],
        seal=[(offset, run[:HOLE_SIZE])],
    )
