"""Moving records into the gaps of a v1 segment.

A hole of this format cannot hide what is written inside it: after a crash a scan walks over whatever the gap has, and what it
meets there must not read as a record that reaches beyond the gap. Hence the order. First the whole gap is zero-filled, sector
by sector from its end to its start; then the records are written from its start, in one write. A crash leaves

- within the zeros: whole dead records, the beginning of one, then zeros up to the next live record. That one is no record any
  more, since its last byte is not 255. From the start to the end it would be zeros and then the rest of a body, whose first
  bytes read as the low half of a size: with records that end in 255 all around, one crash in a hundred would cost some of them;
- within the records: whole copies (their originals are still there, and any copy is good), the beginning of one, then zeros.
  That one is no record either. Without the zeros an old record's last byte could stand in its place, and the first copy of
  the id would have wrong bytes.

In both cases the beginning of one body is walked over byte by byte. Should it be made of records itself, those are seen: a
weakness of the format, which v2 has not.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgstore.contract import GapFill
from msgstore.contract.formats import Write
from msgstore_format_v1.grammar import OVERHEAD

_SECTOR = 512
"""What a disk writes whole or not at all, at the least."""


def gap_room(size: int) -> int:
    """The whole gap if a record fits at all. Any number of bytes may be left over: zeros of any length are a hole."""
    return size if size >= OVERHEAD else 0


def fill_gap(offset: int, size: int, records: Sequence[bytes]) -> GapFill:
    """Zeros for the whole gap, also if it receives nothing, then the records."""
    run = b"".join(records)
    if len(run) > size:
        raise ValueError(f"the gap of {size} bytes at {offset} has no room for {len(run)} bytes of records")
    return GapFill(prepare=_zeros(offset, offset + size), inside=[(offset, run)] if run else ())


def _zeros(begin: int, end: int) -> list[Write]:
    """Zeros from ``begin`` to ``end``, a write a sector, the last sector first."""
    sector = bytes(_SECTOR)
    inner = range((begin // _SECTOR + 1) * _SECTOR, end, _SECTOR)
    starts = [begin, *inner] if begin < end else []
    ends = [*inner, end]
    return [(at, sector[: until - at]) for at, until in zip(reversed(starts), reversed(ends), strict=False)]
