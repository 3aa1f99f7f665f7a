"""Moving records into the gaps of a v1 segment.

A hole of this format cannot hide what is written inside it: after a crash a scan walks over whatever the gap has, and what it
meets there must not read as a record that reaches beyond the gap. Hence the order. First the whole gap is zero-filled, sector
by sector from its end to its start; then the records are written from its start, in one write, all but their size fields,
which are 255s; then, synced, the size fields. A crash leaves

- within the zeros: whole dead records, the beginning of one, then zeros up to the next live record. That one is no record any
  more, since its last byte is not 255. From the start to the end it would be zeros and then the rest of a body, whose first
  bytes read as the low half of a size: with records that end in 255 all around, one crash in a hundred would cost some of them;
- within the records: bytes whose size is larger than any file. A power loss may leave any of their sectors: were the size
  fields there, the first copy of an id could have wrong bytes;
- within the size fields: whole copies. Their originals are still there, and any copy is good.

What has no size is walked over byte by byte. Should a body be made of records itself, those are seen: a weakness of the format,
which v2 has not. Nor does v1 hold against a power loss within the zeros: of a dead record that has lost only its middle a scan
says that it is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from msgstore.contract import GapFill
from msgstore.contract.formats import Write
from msgstore_format_v1.grammar import OVERHEAD

_NO_SIZE = b"\xff" * 8
_SECTOR = 512
"""What a disk writes whole or not at all, at the least."""


def gap_room(size: int) -> int:
    """The whole gap if a record fits at all. Any number of bytes may be left over: zeros of any length are a hole."""
    return size if size >= OVERHEAD else 0


def fill_gap(offset: int, size: int, records: Sequence[bytes]) -> GapFill:
    """Zeros for the whole gap, also if it receives nothing, then the records, then their sizes."""
    run = b"".join(_NO_SIZE[: len(record)] + record[len(_NO_SIZE) :] for record in records)
    if len(run) > size:
        raise ValueError(f"the gap of {size} bytes at {offset} has no room for {len(run)} bytes of records")
    starts = accumulate(map(len, records), initial=offset)
    seal = [write for at, record in zip(starts, records, strict=False) for write in _size_field(at, record[: len(_NO_SIZE)])]
    return GapFill(prepare=_zeros(offset, offset + size), inside=[(offset, run)] if run else (), seal=seal or ())


def _size_field(at: int, size: bytes) -> list[Write]:
    """A write for each sector. The low bytes come first: as long as the high ones are missing the size is too large."""
    cut = min(-at % _SECTOR, len(size)) or len(size)
    return [(at + begin, part) for begin, part in ((cut, size[cut:]), (0, size[:cut])) if part]


def _zeros(begin: int, end: int) -> list[Write]:
    """Zeros from ``begin`` to ``end``, a write a sector, the last sector first."""
    sector = bytes(_SECTOR)
    inner = range((begin // _SECTOR + 1) * _SECTOR, end, _SECTOR)
    starts = [begin, *inner] if begin < end else []
    ends = [*inner, end]
    return [(at, sector[: until - at]) for at, until in zip(reversed(starts), reversed(ends), strict=False)]
