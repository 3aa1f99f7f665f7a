"""Rehearsal: what a format says it would write is looked at before the engine relies on it.

A compaction in place is carried out in memory first, so that a format that fails leaves the segment untouched. Of a rewriting
the copies are read again before the sources go. All functions raise ValueError or TypeError, in words of the format.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import eq

from msgstore.contract import Buffer, SegmentFormat
from msgstore.contract.formats import Write
from msgstore.engine.moves import Live, Plan
from msgstore.scan.sound import scan_checked

_AT_ONCE = 5000
"""Records that are compared at a time."""


def check(
    form: SegmentFormat, data: Buffer, steps: Sequence[Sequence[Write]], todo: Plan, live: Live, places: Sequence[int]
) -> None:
    """Raises unless ``data``, after all the writes of ``steps`` and cut where the plan says, is a segment with each record of
    ``live``, byte for byte, at its place. Takes as much memory as the segment will have bytes."""
    image = _image(form, data, steps, todo)
    for begin in range(0, len(live), _AT_ONCE):
        part, targets = live.part(begin, begin + _AT_ONCE), places[begin : begin + _AT_ONCE]
        before = b"".join([data[offset : offset + size] for offset, size in zip(part.offsets, part.sizes, strict=True)])
        after = b"".join([image[offset : offset + size] for offset, size in zip(targets, part.sizes, strict=True)])
        if before != after:
            raise ValueError("a live record would not be what it was")
    scan = scan_checked(form, image)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the segment would be damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    there = dict(zip(scan.records.id_list(), scan.records.offsets, strict=True))
    if not all(map(eq, map(there.get, live.ids), places)):
        later = set(zip(scan.duplicates.id_list(), scan.duplicates.offsets, strict=True))
        for msg_id, place in zip(live.ids, places, strict=True):
            if there.get(msg_id) != place and (msg_id, place) not in later:
                raise ValueError(f"a live record would not be found at offset {place}")


def _image(form: SegmentFormat, data: Buffer, steps: Sequence[Sequence[Write]], todo: Plan) -> bytes:
    last = todo.gaps[-1] if todo.gaps else None
    end = max(todo.end, last.offset + last.size if last else 0)  # some of the last gap may be left over, and is cut
    image = bytearray(end)
    with memoryview(data) as view:
        image[:] = view[:end]
    begin = len(form.header)
    for writes in steps:
        for offset, chunk in writes:
            if not begin <= offset <= end - len(chunk):
                raise ValueError(f"{len(chunk)} bytes would be written at offset {offset}, outside of the gaps")
            image[offset : offset + len(chunk)] = chunk
    with memoryview(image) as view:
        return bytes(view[: todo.end])


def check_encoded(
    form: SegmentFormat, ids: Sequence[bytes], bodies: Sequence[bytes], encoded: bytes, sizes: Sequence[int]
) -> None:
    """Raises unless ``encoded`` is a record of each of ``bodies``, of ``sizes``."""
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
    """Raises unless ``data`` is a segment of exactly these records, one behind the other from ``begin`` on."""
    scan = scan_checked(form, data)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the copy is damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    places = list(accumulate(sizes, initial=begin))[:-1]
    found = scan.records
    if found.ids != ids or list(found.sizes) != list(sizes) or list(found.offsets) != places:
        raise ValueError("the records of the copy are not those that were written")
