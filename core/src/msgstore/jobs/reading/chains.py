"""Reading a damaged segment to its end: chains of records, and the damaged spans between them."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from msgstore.contract import Buffer, Columns, Damage, SegmentFormat, SegmentScan
from msgstore.scan.sound import scan_checked

SIZE_MISMATCH = "size_mismatch"
"""Reason of a damaged span: a wrong size field hid records."""
MAX_REREADS = 8
"""Limit of the bytes that are read again to detect wrong sizes, in segment sizes. Hostile records may be nested deeply."""

Row = tuple[int, int, bytes, bool]
"""(offset, size, id, True if the record was found after or inside a damaged span)."""


@attrs.frozen
class Chain:
    """Records that follow one another."""

    scan: SegmentScan
    recovered: bool
    """True if the chain was found after or inside a damaged span."""
    shift: int = 0
    """Number to add to the offsets of ``scan`` to make them offsets of the segment."""


@attrs.frozen
class Chains:
    """A segment that was read to its end. Header, chains and damaged spans cover it without overlaps."""

    found: list[Chain]
    damage: list[Damage]
    header: int
    """Bytes of an undamaged header."""
    is_clean: bool
    """True if the last chain ends at the end of the segment, whatever is damaged before it."""

    def rows(self) -> list[Row]:
        """Return every record and every copy, by offset."""
        return sorted(
            (offset + chain.shift, size, msg_id, chain.recovered)
            for chain in self.found
            for columns in (chain.scan.records, chain.scan.duplicates)
            for msg_id, offset, size, _ in columns.rows()
        )

    def records(self) -> tuple[Columns, bytes]:
        """Return every record and every copy by offset, and for each 1 if it was recovered, else 0. The types are unset.

        An undamaged segment without copies needs no sorting.
        """
        if len(self.found) == 1 and not self.found[0].recovered and not len(self.found[0].scan.duplicates):
            columns = self.found[0].scan.records
            return columns, bytes(len(columns))
        return columns_of(self.rows())

    @property
    def holes(self) -> int:
        return sum(sum(chain.scan.hole_sizes) for chain in self.found)


def columns_of(rows: Iterable[Row]) -> tuple[Columns, bytes]:
    """Return records by offset as :meth:`Chains.records` does."""
    columns, recovered = Columns(), bytearray()
    for offset, size, msg_id, again in rows:
        columns.add(msg_id, offset, size)
        recovered.append(again)
    return columns, bytes(recovered)


def read_chains(form: SegmentFormat, data: Buffer) -> Chains:
    """Scan a segment; after each damaged span search for the next chain of records, then look inside damaged records.

    The time is linear in the bytes.
    """
    outer = _read(form, data)
    found, damage = list(outer.found), list(outer.damage)
    for span in [span for chain in outer.found for span in chain.scan.damage]:
        inside = read_inside(form, data, span)
        found += inside.found
        damage += inside.damage
    return attrs.evolve(outer, found=found, damage=sorted(damage, key=lambda span: span.offset))


def _read(form: SegmentFormat, data: Buffer, start: int = 0) -> Chains:
    """Return the chains, and the damaged spans between them. ``start``: offset of the first record to read, or 0 for all."""
    total = len(data)
    rereads = MAX_REREADS * total
    scan = scan_checked(form, data, start)
    found: list[Chain] = []
    damage: list[Damage] = []
    header = min(len(form.header), total) if scan.end.offset and not start else 0
    if scan.header not in (None, "ok") and header:
        damage.append(Damage(0, header, str(scan.header)))
        header = 0
    while scan.end.state != "clean":
        end = scan.end
        following = _next_chain(form, data, scan, may_reread=rereads > 0)
        if following is None:
            damage.append(Damage(end.offset, total - end.offset, end.reason or end.state))
            break
        begin, next_scan = following
        if begin < end.offset:
            rereads -= end.offset - begin
            cut = _cut(scan, begin)
            damage.append(Damage(cut, begin - cut, SIZE_MISMATCH))
        else:
            damage.append(Damage(end.offset, begin - end.offset, end.reason or end.state))
        found.append(Chain(scan, bool(found)))
        scan = next_scan
    found.append(Chain(scan, bool(found)))
    return Chains(found, damage, header, scan.end.state == "clean")


def read_inside(form: SegmentFormat, data: Buffer, span: Damage, *, judged: bool = False) -> Chains:
    """Return the records inside a damaged record: a wrong size may have swallowed whole records.

    They are taken if they lead exactly to the end of the damaged record. With ``judged``, the caller checks them instead.
    Damage among them is not searched again.
    """
    begin = len(form.header)
    window = form.header + data[span.offset + 1 : span.offset + span.size]
    start = form.find_chain(window, begin)
    if start is None:  # fewer records than a chain needs
        start = next(iter(scan_checked(form, window, begin).records.offsets), None)
    inner = None if start is None else _read(form, window, start)
    if start is None or inner is None or not (judged or inner.is_clean):
        return Chains([], [span], 0, is_clean=False)
    shift = span.offset + 1 - begin
    spans = [*inner.damage, *(one for chain in inner.found for one in chain.scan.damage)]
    damage = [Damage(span.offset, start + shift - span.offset, span.reason)]
    damage += [Damage(one.offset + shift, one.size, span.reason if one.reason == "torn" else one.reason) for one in spans]
    return Chains([Chain(chain.scan, recovered=True, shift=shift) for chain in inner.found], damage, 0, inner.is_clean)


def _next_chain(form: SegmentFormat, data: Buffer, scan: SegmentScan, *, may_reread: bool) -> tuple[int, SegmentScan] | None:
    """Return (offset, scan) of the first chain after the end of ``scan``, or inside its last record; None without one.

    A wrong size makes a record or a hole end inside a later one, and hides those in between. A chain inside belongs to the body
    only if it leads exactly to the end of the record.
    """
    end, last = scan.end.offset, _last(scan)
    if last is not None and may_reread:
        inside = form.find_chain(data, last + 1)
        if inside is None:
            return None
        found = scan_checked(form, data, inside)
        if inside > end or found.end.offset != end:
            return inside, found
    after = form.find_chain(data, end + 1)
    return None if after is None else (after, scan_checked(form, data, after))


def _last(scan: SegmentScan) -> int | None:
    """Return the offset of the last record, damaged or not, or without records of the last hole. Its size may be wrong.

    A hole after a record proves nothing: one byte in the middle of a record may look like a small hole.
    """
    begins = [columns.offsets[-1] for columns in (scan.records, scan.duplicates) if len(columns)]
    begins += [spot.offset for spot in scan.damage[-1:]]
    return max(begins or scan.hole_offsets[-1:], default=None)


def _cut(scan: SegmentScan, begin: int) -> int:
    """Remove everything that ends after ``begin`` from the scan. Return the offset of the first that was removed."""
    cut = begin
    for columns in (scan.records, scan.duplicates):
        while len(columns) and columns.offsets[-1] + columns.sizes[-1] > begin:
            cut = min(cut, columns.offsets[-1])
            _pop(columns)
    while len(scan.hole_offsets) and scan.hole_offsets[-1] + scan.hole_sizes[-1] > begin:
        cut = min(cut, scan.hole_offsets.pop())
        scan.hole_sizes.pop()
    while scan.damage and scan.damage[-1].offset + scan.damage[-1].size > begin:
        cut = min(cut, scan.damage.pop().offset)
    return cut


def _pop(columns: Columns) -> None:
    del columns.ids[-16:]
    columns.offsets.pop()
    columns.sizes.pop()
    columns.types.pop()
