"""Moving records into the gaps of a v2 segment so that the chain of records is whole at every instant."""

from __future__ import annotations

from collections.abc import Sequence

from msgstore.contract import GapFill
from msgstore_format_v2.grammar import HOLE_SIZE, RECORD_SIZE, hole_head

_SECTOR = 512
"""What a disk writes whole or not at all, at the least."""


def gap_room(offset: int, size: int) -> int:
    """The whole gap, unless no record fits or the five bytes that open and seal it could be torn between two sectors."""
    straddles = offset % _SECTOR > _SECTOR - HOLE_SIZE
    return 0 if straddles or size < RECORD_SIZE else size


def fill_gap(offset: int, size: int, records: Sequence[bytes]) -> GapFill:
    """The gap becomes one HOLE, receives everything but the first record's type and size, and then those five bytes.

    Until then nobody reads what is inside the hole; they turn it into the run of records and a hole of what is left over,
    whose inside is not written. In all the moved bytes and at most 10 more. Nothing for a gap that receives nothing.
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
