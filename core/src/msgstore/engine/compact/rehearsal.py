"""Rehearsal: check the output of a segment format before the engine relies on it.

A compaction in place is first carried out in memory, so that a wrong format leaves the segment untouched. Copies are read
back before their sources are deleted. All functions raise ValueError or TypeError, with a text about the format.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from msgstore.contract import Buffer, GapFill, SegmentFormat
from msgstore.engine.compact.compaction_plan import Gap
from msgstore.scan.sound import scan_checked


def filled(gap: Gap, before: bytes, fill: GapFill, records: Sequence[bytes]) -> bytearray:
    """Return the bytes of a gap after all writes of ``fill``. Raises unless the records come first, or for a write outside."""
    image = bytearray(before)
    for writes in (fill.prepare, fill.inside, fill.seal):
        for offset, chunk in writes:
            at, end = offset - gap.offset, offset - gap.offset + len(chunk)
            if at < 0 or end > gap.size:
                raise ValueError(f"{len(chunk)} bytes would be written at offset {offset}, outside of the gap at {gap.offset}")
            image[at:end] = chunk
    if not image.startswith(b"".join(records)):
        raise ValueError(f"the gap at offset {gap.offset} would not hold the records that move into it")
    return image


def check(form: SegmentFormat, image: bytes, places: Sequence[int]) -> None:
    """Raise unless ``image``, the compacted segment, has a record at each place."""
    scan = scan_checked(form, image)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the segment would be damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    missing = set(places).difference(scan.records.offsets, scan.duplicates.offsets)
    if missing:
        raise ValueError(f"{len(missing)} live records would not be found, one of them at offset {min(missing)}")


def check_encoded(
    form: SegmentFormat, ids: Sequence[bytes], bodies: Sequence[bytes], encoded: bytes, sizes: Sequence[int]
) -> None:
    """Raise unless ``encoded`` has one record of each of ``bodies``, with these sizes."""
    if not isinstance(encoded, bytes) or not set(map(type, sizes)) <= {int}:
        raise TypeError("it gives no bytes with sizes")
    if len(sizes) != len(ids) or sum(sizes) != len(encoded) or min(sizes) < 1:
        raise ValueError(
            f"it gives {len(sizes)} records of {sum(sizes)} bytes for {len(ids)} messages, in {len(encoded)} bytes"
        )
    begins = accumulate(sizes, initial=0)
    records = [encoded[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
    if list(map(form.decode, ids, records)) != bodies:
        raise ValueError("a record has another body than it was made of")


def check_copy(form: SegmentFormat, data: Buffer, ids: bytes | bytearray, begin: int, sizes: array[int]) -> None:
    """Raise unless ``data`` is a segment of exactly these records, without gaps, from ``begin`` on."""
    scan = scan_checked(form, data)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the copy is damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    found, places = scan.records, array("Q", accumulate(sizes, initial=begin))
    places.pop()
    columns = (found.sizes, sizes), (found.offsets, places)
    if found.ids != ids or any(array("Q", one).tobytes() != other.tobytes() for one, other in columns):
        raise ValueError("the records of the copy are not those that were written")
