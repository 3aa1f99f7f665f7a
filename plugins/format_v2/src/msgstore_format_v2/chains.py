"""Finding records again behind a corrupt spot, for salvage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgstore.contract import Buffer
from msgstore_format_v2.grammar import HEADER_SIZE, HOLE, HOLE_SIZE, SMALL_HOLE, measure


def find_chain(data: Buffer, start: int, length: int, types: Iterable[int], smallest: Mapping[int, int]) -> int | None:
    """The first offset at or after ``start`` where a chain begins that holds to the end of the file or for ``length`` records.

    A chain begins with a record of a message: a hole in front says nothing, and one that is met by chance would hide real
    records. Each candidate costs at most ``length`` steps, whatever the bytes are, so the search is linear.
    """
    total = len(data)
    # A size that fits into the file has a small first byte: this alone rules out nearly every byte of a body.
    first_size_byte = min(total >> 24, 255)
    candidates = re.compile(b"[%b](?=[\\x00-%b])" % (re.escape(bytes(types)), re.escape(bytes([first_size_byte]))), re.DOTALL)
    known = {SMALL_HOLE, *smallest}
    for match in candidates.finditer(data, max(start, HEADER_SIZE)):
        offset = match.start()
        end = offset + int.from_bytes(data[offset + 1 : offset + HOLE_SIZE], "big")
        # A look at what would come next spares most of what is not a record the walk.
        if end <= total and (end == total or data[end] in known) and _holds(data, offset, length, smallest):
            return offset
    return None


def _holds(data: Buffer, offset: int, length: int, smallest: Mapping[int, int]) -> bool:
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
