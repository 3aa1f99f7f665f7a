"""Reading a damaged segment to its end: chains of records, and the damaged spans between them."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from msgstore.contract import Buffer, Columns, Damage, RecordError, SegmentFormat, SegmentScan
from msgstore.scan.sound import scan_checked

SIZE_MISMATCH = "size_mismatch"
"""The reason of a span whose size field hid records that go on behind it."""
MAX_DEPTH = 8
"""How often damage inside damage is searched: each level is linear in the bytes, so the whole is."""
SHORT = 2
"""Records in a row that are enough to pass a false end, behind a whole chain inside: damage may be near on both sides."""
PATIENCE = 8
"""So many times the size of a segment is read in all to tell false ends from true ones: somebody may have put records inside
records inside records."""


Row = tuple[int, int, bytes, bool]
"""(offset, size, id, whether it was found behind or inside a damaged spot)."""


@attrs.frozen
class Chain:
    scan: SegmentScan
    recovered: bool
    """True if it was found behind or inside a damaged spot: it may begin in the middle of nothing, but it holds."""
    shift: int = 0
    """What is added to the offsets of ``scan`` to make them offsets of the segment."""


@attrs.define
class _ReadBudget:
    left: int
    """Bytes."""


@attrs.frozen
class Chains:
    """All of a segment. Chains and damaged spans do not overlap; with the header they cover it."""

    found: list[Chain]
    damage: list[Damage]
    header: int
    """Bytes of an undamaged header."""
    is_clean: bool
    """True if records hold to the very end, damage in between or not."""

    def rows(self) -> list[Row]:
        """Return every record and every copy, by offset."""
        return sorted(
            (offset + chain.shift, size, msg_id, chain.recovered)
            for chain in self.found
            for columns in (chain.scan.records, chain.scan.duplicates)
            for msg_id, offset, size, _ in columns.rows()
        )

    def records(self) -> tuple[Columns, bytes]:
        """Return every record and every copy, by offset, and for each 1 if it was found again, else 0. The types say nothing.

        If there is one chain from the beginning on, without a copy, nothing has to be sorted.
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


def read_chains(form: SegmentFormat, data: Buffer, start: int = 0, depth: int = 0) -> Chains:
    """Scan, and behind each spot where that stops look for the next chain of records; then look inside damaged records.

    Linear in the bytes. With ``start``, the offset of a record, only what comes from there on, without the header.
    """
    total = len(data)
    patience = _ReadBudget(PATIENCE * total)
    scan = scan_checked(form, data, start)
    found: list[Chain] = []
    damage: list[Damage] = []
    header = min(len(form.header), total) if scan.end.offset and not start else 0
    if scan.header not in (None, "ok") and header:
        damage.append(Damage(0, header, str(scan.header)))
        header = 0
    while scan.end.state != "clean":
        end = scan.end
        following = _behind(form, data, scan, patience)
        if following is None:
            damage.append(Damage(end.offset, total - end.offset, end.reason or end.state))
            break
        begin, next_scan = following
        if begin < end.offset:
            cut = _cut(scan, begin)
            damage.append(Damage(cut, begin - cut, SIZE_MISMATCH))
        else:
            damage.append(Damage(end.offset, begin - end.offset, end.reason or end.state))
        found.append(Chain(scan, bool(found)))
        scan = next_scan
    found.append(Chain(scan, bool(found)))
    for spot in [spot for chain in found for spot in chain.scan.damage]:
        inside = read_inside(form, data, spot, depth)
        found += inside.found
        damage += inside.damage
    return Chains(found, sorted(damage, key=lambda spot: spot.offset), header, scan.end.state == "clean")


def read_inside(form: SegmentFormat, data: Buffer, spot: Damage, depth: int = 0, *, judged: bool = False) -> Chains:
    """Return records inside a damaged record: a flipped bit in its size may have swallowed whole records.

    They are real if they lead exactly to where reading went on, or if each has a check of its own that it passes. ``judged``:
    the caller has such a check, and makes it.
    """
    nothing = Chains([], [spot], 0, is_clean=False)
    if depth == MAX_DEPTH:
        return nothing
    begin = len(form.header)
    window = form.header + data[spot.offset + 1 : spot.offset + spot.size]
    start = form.find_chain(window, begin)
    if start is None:  # or the format's scan finds its own way
        start = next(iter(scan_checked(form, window, begin).records.offsets), None)
    if start is None:
        return nothing
    inner = read_chains(form, window, start, depth + 1)
    if not (judged or inner.is_clean or all(_has_check(form, window, *row[:3]) for row in inner.rows())):
        return nothing
    shift = spot.offset + 1 - begin
    damage = [
        Damage(cut.offset + shift, cut.size, spot.reason if cut.reason == "torn" else cut.reason)  # it is not the file's end
        for cut in inner.damage
    ]
    damage.append(Damage(spot.offset, start + shift - spot.offset, spot.reason))
    return Chains([attrs.evolve(c, recovered=True, shift=c.shift + shift) for c in inner.found], damage, 0, inner.is_clean)


def _has_check(form: SegmentFormat, data: Buffer, offset: int, size: int, msg_id: bytes) -> bool:
    """True if an intact record cannot be one with another body."""
    record = bytearray(data[offset : offset + size])
    begin, end = form.body_span(data, offset, size)
    if begin == end:
        return False
    record[begin - offset] ^= 1
    try:
        form.decode(msg_id, bytes(record))
    except RecordError:
        return True
    return False


def _behind(form: SegmentFormat, data: Buffer, scan: SegmentScan, patience: _ReadBudget) -> tuple[int, SegmentScan] | None:
    """(offset, scan) of the next chain, or None.

    A flipped bit in the size of a record or a hole makes it end in the middle of a later one, and hides those between. So the
    search begins inside what is last in front of the corrupt spot. If it has a false end, the first chain inside is the next
    one: what else is damaged there, reading on meets by itself. If it has not, the chains inside are its body's.
    """
    end = scan.end.offset
    last = _last(scan)
    if last is not None and patience.left > 0:
        inside = form.find_chain(data, last + 1)
        if inside is None:
            return None
        found = scan_checked(form, data, inside)
        patience.left -= min(found.end.offset, end) - last
        if inside > end or _is_false(form, data, end, inside, found, patience):
            return inside, found
    behind = form.find_chain(data, end + 1)
    return None if behind is None else (behind, scan_checked(form, data, behind))


def _is_false(form: SegmentFormat, data: Buffer, end: int, inside: int, scan: SegmentScan, patience: _ReadBudget) -> bool:
    """True if a record that has a chain inside, at ``inside``, does not really end at ``end``.

    Its body may be a segment, damaged or not, but a body ends where its record does: a chain that begins in front of ``end``
    and passes it is none of it. Nothing passes if the spot at ``end`` is in the middle of another damaged record. Then the
    distance tells: one flipped bit makes a size too large by a power of two.
    """
    beyond = end - inside
    if scan.end.offset < end and beyond & (beyond - 1) == 0:
        return True
    while scan.end.offset <= end:
        last = _last(scan)
        at = (scan.end.offset if last is None else last) + 1
        begin = form.find_chain(data, at, SHORT) if patience.left > 0 else None
        if begin is None or begin >= end:
            return False
        scan = scan_checked(form, data, begin)
        patience.left -= scan.end.offset - at
    return True


def _last(scan: SegmentScan) -> int | None:
    """Return the offset of the record whose end may be wrong: the last one, damaged or not, or, without records, the last hole.

    A hole after it proves nothing: one byte in the middle of a record may look like a small hole.
    """
    begins = [columns.offsets[-1] for columns in (scan.records, scan.duplicates) if len(columns)]
    begins += [spot.offset for spot in scan.damage[-1:]]
    return max(begins or scan.hole_offsets[-1:], default=None)


def _cut(scan: SegmentScan, begin: int) -> int:
    """Take what ends behind ``begin`` out of the scan; returns where the first of it began."""
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
