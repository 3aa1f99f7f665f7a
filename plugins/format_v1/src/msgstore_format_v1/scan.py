"""Scan of a whole v1 segment: record after record, and byte by byte where there is none, as the broker does it."""

from __future__ import annotations

from msgstore.contract import Buffer, CheckBody, Damage, SegmentScan
from msgstore_format_v1.grammar import (
    BODY_AT,
    HEAD,
    LEAST_SIZE,
    OVERHEAD,
    SEAM,
    SIZE_FIELD,
    UNCOUNTED,
    candidates,
    end_of_zeros,
    is_followed,
    plausible_size,
)

_BATCH_BYTES = 1 << 20


def scan_segment(data: Buffer, start: int, check_body: CheckBody | None) -> SegmentScan:
    """Scan ``data`` from ``start`` on; see ``SegmentFormat.scan``.

    The inner loop accepts records that another record or zeros follow, which are nearly all. :func:`find_record` decides all
    other cases. The bytes between two records are a hole. A record whose body fails ``check_body`` is damage.
    """
    scan = SegmentScan()
    total = len(data)
    offset = start
    unpack = HEAD.unpack_from
    fast_end = total - OVERHEAD if check_body is None else -1
    found: tuple[int, int] | None = (start, 0)
    while found is not None and offset < total:
        ids: list[bytes] = []
        offsets: list[int] = []
        sizes: list[int] = []
        limit = min(offset + _BATCH_BYTES, total)
        last_head = min(limit, fast_end)
        while offset < limit:
            while offset <= last_head:
                size, msg_id = unpack(data, offset)
                end = offset + size + UNCOUNTED
                if size < LEAST_SIZE or data[end - 1 : end + 4] != SEAM:
                    break
                ids.append(msg_id)
                offsets.append(offset)
                sizes.append(end - offset)
                offset = end
            if offset >= limit or (found := find_record(data, offset)) is None:
                break
            at, size = found
            if at > offset:
                scan.hole_offsets.append(offset)
                scan.hole_sizes.append(at - offset)
            offset = at + size
            if check_body is not None and not check_body(data[at + SIZE_FIELD : at + BODY_AT], data[at + BODY_AT : offset - 1]):
                scan.damage.append(Damage(at, size, "invalid_message_body"))
                continue
            ids.append(data[at + SIZE_FIELD : at + BODY_AT])
            offsets.append(at)
            sizes.append(size)
        scan.records.extend(ids, offsets, sizes, bytes(len(ids)))
    scan.separate_copies()
    return _end(scan, data, offset)


def find_record(data: Buffer, offset: int) -> tuple[int, int] | None:
    """Return (offset, size) of the first record from ``offset`` on, or None.

    After a zero-filled hole, the last zeros and the first bytes of a real size field can look like a smaller record. Such a
    phantom begins up to 7 bytes too early. It may even end with the end mark, but no valid bytes follow it. A record that
    begins within the phantom's first 8 bytes, and that valid bytes follow, is therefore returned instead.
    """
    for at in candidates(data, offset):
        size = plausible_size(data, at)
        if size is None:
            continue
        if not is_followed(data, at + size):
            for later in range(at + 1, at + SIZE_FIELD):
                later_size = plausible_size(data, later)
                if later_size is not None and is_followed(data, later + later_size):
                    return later, later_size
        return at, size
    return None


def _end(scan: SegmentScan, data: Buffer, offset: int) -> SegmentScan:
    """Set the end of the scan. ``offset`` ends the last record: zeros after it are a hole, other bytes a torn write."""
    total = len(data)
    if offset > total or end_of_zeros(data, offset) < total:
        return scan.ended("torn", offset)
    if offset < total:
        scan.hole_offsets.append(offset)
        scan.hole_sizes.append(total - offset)
    return scan.ended("clean", total)
