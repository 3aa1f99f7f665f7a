"""Scan of a whole v2 segment, strictly record by record. The contents of holes are skipped."""

from __future__ import annotations

from collections.abc import Mapping

from msgstore.contract import Buffer, CheckBody, Damage, RecordType, SegmentScan
from msgstore_format_v2.grammar import (
    HEADER_SIZE,
    HOLE,
    HOLE_SIZE,
    MESSAGE,
    RECORD_HEAD,
    RECORD_SIZE,
    TORN,
    check_header,
    measure,
)

_BATCH_BYTES = 1 << 20


def scan_segment(
    data: Buffer,
    start: int,
    types: Mapping[int, RecordType],
    smallest: Mapping[int, int],
    check_body: CheckBody | None,
) -> SegmentScan:
    """Scan ``data`` from ``start`` on; see ``SegmentFormat.scan``.

    The inner loop accepts whole MESSAGEs and HOLEs, which are nearly all records. :func:`measure` and the record type decide
    all other cases. A scan that begins directly after a hole does not reject a second hole there.
    """
    scan = SegmentScan()
    total = len(data)
    if total < HEADER_SIZE:
        return scan.ended("torn", 0)
    scan.header = check_header(data)
    offset = max(start, HEADER_SIZE)
    if offset > total:
        return scan.ended("torn", offset)

    hole_offsets: list[int] = []
    hole_sizes: list[int] = []
    hole_end = -1  # end of the last hole: another hole must not begin there
    unpack = RECORD_HEAD.unpack_from
    plain = MESSAGE if check_body is None else -1
    reason: int | str = 0
    while offset < total and isinstance(reason, int):
        ids: list[bytes] = []
        offsets: list[int] = []
        sizes: list[int] = []
        kinds = bytearray()
        limit = min(offset + _BATCH_BYTES, total)
        last_head = min(limit, total - RECORD_SIZE)
        while offset < limit:
            while offset <= last_head:
                kind, size, msg_id = unpack(data, offset)
                end = offset + size
                if end > total:
                    break
                if kind == plain and size >= RECORD_SIZE:
                    ids.append(msg_id)
                    offsets.append(offset)
                    sizes.append(size)
                    kinds.append(MESSAGE)
                elif kind == HOLE and size >= HOLE_SIZE and hole_end != offset:
                    hole_offsets.append(offset)
                    hole_sizes.append(size)
                    hole_end = end
                else:
                    break
                offset = end
            if offset >= limit:
                break

            measured = measure(data, offset, hole_end == offset, smallest)
            if isinstance(measured, str):
                reason = measured
                break
            kind, end = data[offset], offset + measured
            if kind <= HOLE:
                hole_offsets.append(offset)
                hole_sizes.append(measured)
                hole_end = end
            elif damage := types[kind].check(data, offset, measured):
                scan.damage.append(Damage(offset, measured, damage))
            elif check_body is not None and not check_body(
                data[offset + 5 : offset + 21], data[slice(*types[kind].body_span(offset, measured))]
            ):
                reason = "invalid_message_body"
                break
            else:
                ids.append(data[offset + HOLE_SIZE : offset + RECORD_SIZE])
                offsets.append(offset)
                sizes.append(measured)
                kinds.append(kind)
            offset = end
        scan.records.extend(ids, offsets, sizes, kinds)
    scan.separate_copies()

    scan.hole_offsets.fromlist(hole_offsets)
    scan.hole_sizes.fromlist(hole_sizes)
    if isinstance(reason, int):
        return scan.ended("clean", offset)
    return scan.ended("torn", offset) if reason == TORN else scan.ended("corrupt", offset, reason)
