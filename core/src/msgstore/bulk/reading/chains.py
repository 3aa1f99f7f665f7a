"""Reading a damaged segment to its end: chains of records, and the damaged spans between them."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from msgstore.contract import Buffer, Columns, Damage, RecordError, SegmentFormat, SegmentScan

SIZE_MISMATCH = "size_mismatch"
"""The reason of a span whose size field hid records that go on behind it."""
MAX_DEPTH = 8
"""How often damage inside damage is searched: each level reads no byte twice, so the whole stays linear."""


@attrs.frozen
class Chain:
    scan: SegmentScan
    recovered: bool
    """True if it was found behind or inside a damaged spot: it may begin in the middle of nothing, but it holds."""
    shift: int = 0
    """What is added to the offsets of ``scan`` to make them offsets of the segment."""


@attrs.frozen
class Chains:
    """All of a segment. Chains and damaged spans do not overlap; with the header they cover it."""

    found: list[Chain]
    damage: list[Damage]
    header: int
    """Bytes of an undamaged header."""
    is_clean: bool
    """True if records hold to the very end, damage in between or not."""

    def rows(self) -> list[tuple[int, int, bytes, bool]]:
        """(offset, size, id, whether it was found again) of every record and every copy, by offset."""
        return sorted(
            (offset + chain.shift, size, msg_id, chain.recovered)
            for chain in self.found
            for columns in (chain.scan.records, chain.scan.duplicates)
            for msg_id, offset, size, _ in columns.rows()
        )

    def columns(self) -> Columns:
        """Every record and every copy, by offset. The types say nothing."""
        if len(self.found) == 1 and not self.found[0].shift and not len(self.found[0].scan.duplicates):
            return self.found[0].scan.records
        columns = Columns()
        for offset, size, msg_id, _ in self.rows():
            columns.add(msg_id, offset, size)
        return columns

    @property
    def only(self) -> Columns | None:
        """The records, if there is one chain from the beginning on, without a copy: nothing has to be sorted then."""
        if len(self.found) == 1 and not self.found[0].recovered and not len(self.found[0].scan.duplicates):
            return self.found[0].scan.records
        return None

    @property
    def holes(self) -> int:
        return sum(sum(chain.scan.hole_sizes) for chain in self.found)


def read_chains(form: SegmentFormat, data: Buffer, start: int = 0, depth: int = 0) -> Chains:
    """Scan, and behind each spot where that stops look for the next chain of records; then look inside damaged records.

    Linear in the bytes, as a rule. With ``start``, the offset of a record, only what comes from there on, without the header.
    """
    total = len(data)
    scan = form.scan(data, start=start)
    found: list[Chain] = []
    damage: list[Damage] = []
    header = min(len(form.header), total) if scan.end.offset and not start else 0
    if scan.header not in (None, "ok") and header:
        damage.append(Damage(0, header, str(scan.header)))
        header = 0
    while scan.end.state != "clean":
        end = scan.end
        following = _behind(form, data, scan)
        if following is None:
            damage.append(Damage(end.offset, total - end.offset, end.reason or end.state))
            break
        begin, next_scan = following
        if begin < end.offset:
            last = _drop_last(scan)
            damage.append(Damage(last, begin - last, SIZE_MISMATCH))
        else:
            damage.append(Damage(end.offset, begin - end.offset, end.reason or end.state))
        found.append(Chain(scan, bool(found)))
        scan = next_scan
    found.append(Chain(scan, bool(found)))
    for spot in [spot for chain in found for spot in chain.scan.damage]:
        inside = _inside(form, data, spot, depth)
        found += inside.found
        damage += inside.damage
    return Chains(found, sorted(damage, key=lambda spot: spot.offset), header, scan.end.state == "clean")


def _inside(form: SegmentFormat, data: Buffer, spot: Damage, depth: int) -> Chains:
    """What a damaged record hides: a flipped bit in its size may have made it swallow whole records.

    They are real if they lead exactly to where reading went on, or if each has a check of its own that it passes.
    """
    nothing = Chains([], [spot], 0, is_clean=False)
    if depth == MAX_DEPTH:
        return nothing
    begin = len(form.header)
    window = form.header + data[spot.offset + 1 : spot.offset + spot.size]
    start = form.find_chain(window, begin)
    if start is None:
        return nothing
    inner = read_chains(form, window, start, depth + 1)
    if not inner.is_clean and not all(_has_check(form, window, *row[:3]) for row in inner.rows()):
        return nothing
    shift = spot.offset + 1 - begin
    damage = [
        Damage(cut.offset + shift, cut.size, spot.reason if cut.reason == "torn" else cut.reason)  # it is not the file's end
        for cut in inner.damage
    ]
    damage.append(Damage(spot.offset, start + shift - spot.offset, spot.reason))
    return Chains([attrs.evolve(c, recovered=True, shift=c.shift + shift) for c in inner.found], damage, 0, inner.is_clean)


def _has_check(form: SegmentFormat, data: Buffer, offset: int, size: int, msg_id: bytes) -> bool:
    """True if a good record would not be one with another body."""
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


def _behind(form: SegmentFormat, data: Buffer, scan: SegmentScan) -> tuple[int, SegmentScan] | None:
    """(offset, scan) of the next chain, or None.

    A flipped bit in the size of a record or a hole makes it end in the middle of a later one, and hides those between. So the
    search begins inside what ends at the corrupt spot; a chain there is the real one if it passes that spot.
    """
    end = scan.end.offset
    last = _last(scan)
    if last is not None:
        inside = form.find_chain(data, last[0] + 1)
        if inside is None:
            return None
        found = form.scan(data, start=inside)
        if inside > end or found.end.offset > end:
            return inside, found
    behind = form.find_chain(data, end + 1)
    return None if behind is None else (behind, form.scan(data, start=behind))


def _drop_last(scan: SegmentScan) -> int:
    """Take what ends where the scan ended out of it; returns its offset."""
    last = _last(scan)
    assert last is not None
    offset, drop = last
    drop()
    return offset


def _last(scan: SegmentScan) -> tuple[int, Callable[[], object]] | None:
    """What ends where the scan ended: its offset, and how to take it out of the scan."""
    end = scan.end.offset
    for columns in (scan.records, scan.duplicates):
        if len(columns) and columns.offsets[-1] + columns.sizes[-1] == end:
            return columns.offsets[-1], lambda columns=columns: _pop(columns)
    if len(scan.hole_offsets) and scan.hole_offsets[-1] + scan.hole_sizes[-1] == end:
        return scan.hole_offsets[-1], lambda: (scan.hole_offsets.pop(), scan.hole_sizes.pop())
    if scan.damage and scan.damage[-1].offset + scan.damage[-1].size == end:
        return scan.damage[-1].offset, scan.damage.pop
    return None


def _pop(columns: Columns) -> None:
    del columns.ids[-16:]
    columns.offsets.pop()
    columns.sizes.pop()
    columns.types.pop()
