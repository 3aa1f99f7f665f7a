"""Reading a whole v1 segment: record behind record, and byte by byte where there is none, as the broker does."""

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
    """Everything from ``start`` on (see ``SegmentFormat.scan``).

    A record that another one or zeros follow, nearly all there are, is told in the inner loop; everything else is left to
    :func:`find_record`. What lies between two records is a hole. A record whose body fails ``check_body`` is damage.
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
    """(offset, size) of the first record at or after ``offset``, or None.

    Behind a zero-filled hole its zeros and the first bytes of a real size field may read, up to 7 bytes early, as a record of a
    smaller size that happens to end in the mark. What should stand behind a record does not stand behind such a phantom, so
    it gives way to a record that has it, if one begins within its first 8 bytes.
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
    """``offset`` is where the last record ends. Zeros behind it are a hole, anything else is a write that was cut off."""
    total = len(data)
    if offset > total or end_of_zeros(data, offset) < total:
        return scan.ended("torn", offset)
    if offset < total:
        scan.hole_offsets.append(offset)
        scan.hole_sizes.append(total - offset)
    return scan.ended("clean", total)
