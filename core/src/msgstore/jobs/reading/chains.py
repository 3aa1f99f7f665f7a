"""Reading a damaged segment to its end: chains of records, and the damaged spans between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import attrs

from msgstore.contract import Buffer, RecordError, SegmentFormat, SegmentScan
from msgstore.scan.formats import scan_checked

SIZE_MISMATCH = "size_mismatch"
"""Reason of a damaged span: a wrong size field hid records."""
INVALID_BODY = "invalid_message_body"
"""Reason of a :data:`Judge` for a record that may have swallowed whole records."""
MAX_REREADS = 8
"""Limit of the bytes that are read again to detect wrong sizes, in segment sizes. Hostile records may be nested deeply."""
MIN_CHAIN = 2
"""Records in a row that are enough to pass a wrong end, after a whole chain inside: there may be damage on both sides."""
MAX_DEPTH = 8
"""Number of times that damage inside damage is searched. Each level is linear in the bytes."""
_MAX_SEARCHED = 2**28
"""Bytes of the largest damaged span that is searched for fewer records than a chain has: it is copied into memory."""

Judge = Callable[[bytes, bytes], str | None]
"""Called with the id and the bytes of an intact record. Returns the reason for which it counts as damaged, or None."""


class SegmentSpan(NamedTuple):
    """A part of a segment: a record, which has an ``id``; damaged bytes, which have a ``reason``; or a hole."""

    offset: int
    size: int
    id: bytes | None = None
    reason: str = ""
    recovered: bool = False
    """True for a record that was found after or inside a damaged span."""

    @property
    def end(self) -> int:
        return self.offset + self.size


@attrs.define
class _Rereads:
    left: int
    """Bytes."""


def read_spans(
    form: SegmentFormat, data: Buffer, check_segment: Judge | None = None, scan: SegmentScan | None = None
) -> list[SegmentSpan]:
    """Return every span of a segment after its header, in order and without gaps. A damaged header is a span too.

    After each damaged span it searches for the next chain of records, and it looks inside damaged records. The time is linear
    in the bytes. ``scan``: result of a scan from the start, if there is one.
    """
    scan = scan or scan_checked(form, data)
    spans, _ = _read(form, data, scan, check_segment, 0)
    header = min(len(form.header), len(data))
    if header and scan.end.offset and scan.header not in (None, "ok"):
        spans.insert(0, SegmentSpan(0, header, reason=str(scan.header)))
    return spans


def _read(
    form: SegmentFormat, data: Buffer, scan: SegmentScan, check_segment: Judge | None, depth: int
) -> tuple[list[SegmentSpan], bool]:
    """Return the spans from the start of ``scan`` to the end of the data, and True if they end with a record or a hole."""
    spans: list[SegmentSpan] = []
    rereads = _Rereads(MAX_REREADS * len(data))
    following: SegmentScan | None = scan
    while following:
        end, chain, following = following.end, _chain(following, recovered=bool(spans or depth)), None
        cut = begin = end.offset
        reason = end.reason or end.state
        if end.state != "clean":
            begin, following = _next_chain(form, data, chain, end.offset, rereads)
        if begin < cut:
            cut, reason = begin, SIZE_MISMATCH
            while chain and chain[-1].end > begin:
                cut = chain.pop().offset
        for span in chain:
            spans += _settled(form, data, span, check_segment, depth)
        if cut < begin or (end.state != "clean" and not spans):  # a file that was cut to nothing is a span of no bytes
            spans.append(SegmentSpan(cut, begin - cut, reason=reason))
    return spans, end.state == "clean"


def _chain(scan: SegmentScan, *, recovered: bool) -> list[SegmentSpan]:
    spans = [
        SegmentSpan(offset, size, msg_id, recovered=recovered)
        for columns in (scan.records, scan.duplicates)
        for msg_id, offset, size, _ in columns.rows()
    ]
    spans += map(SegmentSpan, scan.hole_offsets, scan.hole_sizes)
    spans += [SegmentSpan(spot.offset, spot.size, reason=spot.reason) for spot in scan.damage]
    return sorted(spans, key=lambda span: span.offset)


def _next_chain(
    form: SegmentFormat, data: Buffer, chain: list[SegmentSpan], end: int, rereads: _Rereads
) -> tuple[int, SegmentScan | None]:
    """Return offset and scan of the first chain after ``chain``, or inside its last record; the end of the data without one.

    A wrong size makes a record or a hole end inside a later one, and hides those in between.
    """
    last = _last(chain)
    if last is not None and rereads.left > 0:
        inside = _find_chain(form, data, last + 1)
        if inside is None:
            return len(data), None
        found = scan_checked(form, data, inside)
        rereads.left -= min(found.end.offset, end) - last
        if inside > end or _is_wrong(form, data, end, inside, found, rereads):
            return inside, found
    after = _find_chain(form, data, end + 1)
    return (len(data), None) if after is None else (after, scan_checked(form, data, after))


def _find_chain(form: SegmentFormat, data: Buffer, start: int, length: int = 8) -> int | None:
    """Return the format's answer. Raises ValueError if it is not from ``start`` on: the search would not end."""
    found = form.find_chain(data, start, length)
    if found is not None and not start <= found < len(data):
        raise ValueError(f"find_chain returns {found} for a search from {start} on, in {len(data)} bytes")
    return found


def _last(chain: list[SegmentSpan]) -> int | None:
    """Return the offset of the last record, damaged or not, or without records of the last hole. Its size may be wrong.

    A hole after a record proves nothing: one byte in the middle of a record may look like a small hole.
    """
    last = next((span for span in reversed(chain) if span.id or span.reason), chain[-1] if chain else None)
    return None if last is None else last.offset


def _is_wrong(form: SegmentFormat, data: Buffer, end: int, inside: int, scan: SegmentScan, rereads: _Rereads) -> bool:
    """Return True if a record with a chain inside, at ``inside``, does not really end at ``end``.

    Its body may be a segment, damaged or not, but a body ends where its record does: a chain that begins before ``end`` and
    passes it is no part of the body. None passes if ``end`` is in the middle of another damaged record. Then the distance
    decides: one flipped bit makes a size too large by a power of two.
    """
    beyond = end - inside
    if scan.end.offset < end and beyond & (beyond - 1) == 0:
        return True
    while scan.end.offset <= end:
        last = _last(_chain(scan, recovered=False))
        at = (scan.end.offset if last is None else last) + 1
        begin = _find_chain(form, data, at, MIN_CHAIN) if rereads.left > 0 else None
        if begin is None or begin >= end:
            return False
        scan = scan_checked(form, data, begin)
        rereads.left -= scan.end.offset - at
    return True


def _settled(
    form: SegmentFormat, data: Buffer, span: SegmentSpan, check_segment: Judge | None, depth: int
) -> list[SegmentSpan]:
    """Return an intact span, or what is inside a damaged one: a wrong size may have swallowed whole records.

    Records inside are taken if they lead exactly to the end of the damaged one, if each has a check of its own that it passes,
    or if they pass the check of the body that the damaged one failed.
    """
    judged = False
    if span.id is not None:
        reason = check_segment(span.id, data[span.offset : span.end]) if check_segment else None
        if reason is None:
            return [span]
        span, judged = SegmentSpan(span.offset, span.size, reason=reason), reason == INVALID_BODY
        if not judged:
            return [span]
    if not span.reason or depth == MAX_DEPTH or span.size > _MAX_SEARCHED:
        return [span]
    begin = len(form.header)
    window = form.header + data[span.offset + 1 : span.end]
    start = _find_chain(form, window, begin)
    if start is None:  # fewer records than a chain needs
        start = next(iter(scan_checked(form, window, begin).records.offsets), None)
    if start is None:
        return [span]
    inner, is_clean = _read(form, window, scan_checked(form, window, start), check_segment, depth + 1)
    if not (judged or is_clean or all(_has_check(form, window, one) for one in inner if one.id)):
        return [span]
    shift = span.offset + 1 - begin
    return [
        SegmentSpan(span.offset, start + shift - span.offset, reason=span.reason),
        *(one._replace(offset=one.offset + shift, reason=span.reason if one.reason == "torn" else one.reason) for one in inner),
    ]


def _has_check(form: SegmentFormat, data: Buffer, record: SegmentSpan) -> bool:
    """Return True if an intact record would fail its check with another body."""
    changed = bytearray(data[record.offset : record.end])
    begin, end = form.body_span(data, record.offset, record.size)
    if begin == end:
        return False
    changed[begin - record.offset] ^= 1
    try:
        form.decode(record.id or b"", bytes(changed))
    except RecordError:
        return True
    return False
