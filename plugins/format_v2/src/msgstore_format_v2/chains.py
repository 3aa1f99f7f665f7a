"""Search for the next records after a damaged span, for salvage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgstore.contract import Buffer
from msgstore_format_v2.grammar import HEADER_SIZE, HOLE, HOLE_SIZE, SMALL_HOLE, measure


def find_chain(data: Buffer, start: int, length: int, types: Iterable[int], smallest: Mapping[int, int]) -> int | None:
    """Return the first offset from ``start`` on at which ``length`` records, or records up to the end of the file, follow.

    Returns None if there is no such offset. The chain must begin with the record of a message: bytes that look like a hole by
    chance would hide real records. The search is linear, because each candidate costs at most ``length`` steps.
    """
    total = len(data)
    # A size that fits into the file has a small first byte: this test alone excludes nearly every byte of a body.
    first_size_byte = min(total >> 24, 255)
    candidates = re.compile(b"[%b](?=[\\x00-%b])" % (re.escape(bytes(types)), re.escape(bytes([first_size_byte]))), re.DOTALL)
    known = {SMALL_HOLE, *smallest}
    for match in candidates.finditer(data, max(start, HEADER_SIZE)):
        offset = match.start()
        end = offset + int.from_bytes(data[offset + 1 : offset + HOLE_SIZE], "big")
        # The type byte of the next record excludes most candidates at a lower cost than the walk.
        if end <= total and (end == total or data[end] in known) and _is_chain(data, offset, length, smallest):
            return offset
    return None


def _is_chain(data: Buffer, offset: int, length: int, smallest: Mapping[int, int]) -> bool:
    total, after_hole = len(data), False
    for _ in range(length):
        size = measure(data, offset, after_hole, smallest)
        if isinstance(size, str):
            return False
        after_hole = data[offset] <= HOLE
        offset += size
        if offset == total:
            return True
    return True
