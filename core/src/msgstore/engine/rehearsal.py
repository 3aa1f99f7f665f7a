"""Rehearsal: what a format says it would write is looked at before the engine relies on it.

A compaction in place is carried out in memory first, so that a format that fails leaves the segment untouched. Of a rewriting
the copies are read again before the sources go. All functions raise ValueError or TypeError, in words of the format.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgstore.contract import Buffer, SegmentFormat
from msgstore.contract.formats import Write
from msgstore.engine.moves import Live, Plan
from msgstore.scan.sound import scan_checked


def check(
    form: SegmentFormat, data: Buffer, steps: Sequence[Sequence[Write]], todo: Plan, live: Live, places: Sequence[int]
) -> None:
    """Raises unless ``data``, after all the writes of ``steps`` and cut where the plan says, is a segment with each record of
    ``live``, byte for byte, at its place. Takes as much memory as the segment will have bytes."""
    image = _image(form, data, steps, todo)
    if image != b"".join(_pieces(image, data, todo, live))[: todo.end]:
        raise ValueError("a live record would not be what it was")
    scan = scan_checked(form, image)
    if scan.end.state != "clean" or scan.damage:
        raise ValueError(f"the segment would be damaged at offset {scan.damage[0].offset if scan.damage else scan.end.offset}")
    missing = set(places).difference(scan.records.offsets, scan.duplicates.offsets)
    if missing:
        raise ValueError(f"{len(missing)} live records would not be found, one of them at offset {min(missing)}")


def _image(form: SegmentFormat, data: Buffer, steps: Sequence[Sequence[Write]], todo: Plan) -> bytes:
    """The segment as it would be after these writes and the cut."""
    last = todo.gaps[-1] if todo.gaps else None
    end = max(todo.end, last.offset + last.size if last else 0)  # some of the last gap may be left over, and is cut
    with memoryview(data) as view:
        image = bytearray(view[:end])
    for writes in steps:
        if writes and min(writes)[0] < len(form.header):
            raise ValueError(f"something would be written at offset {min(writes)[0]}")
        for offset, chunk in writes:
            image[offset : offset + len(chunk)] = chunk
    if len(image) != end:
        raise ValueError(f"something would be written behind offset {end}, where other records stand")
    with memoryview(image) as view:
        return bytes(view[: todo.end])


def _pieces(image: bytes, data: Buffer, todo: Plan, live: Live) -> Iterator[bytes]:
    """What the segment should be: what stands between the gaps, what has moved, and as it is what is left over of each gap."""
    at, offsets, sizes = 0, live.offsets, live.sizes
    for gap in todo.gaps:
        yield data[at : gap.offset]
        at = gap.offset
        for position in gap.moved:
            offset, size = offsets[position], sizes[position]
            yield data[offset : offset + size]
            at += size
        end = gap.offset + gap.size
        if at < end:
            yield image[at:end]
        at = end
    if at < todo.end:
        yield data[at : todo.end]


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
    found, places = scan.records, array("Q", accumulate(sizes, initial=begin))
    places.pop()
    columns = (found.sizes, sizes), (found.offsets, places)
    if found.ids != ids or any(array("Q", one).tobytes() != other.tobytes() for one, other in columns):
        raise ValueError("the records of the copy are not those that were written")
