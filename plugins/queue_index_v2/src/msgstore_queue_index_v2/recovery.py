"""Opening of queue index v2 after a crash: which entries of ``N.qi`` are left, and which are of no message."""

from __future__ import annotations

import logging
import sys
from array import array
from itertools import pairwise
from pathlib import Path

from rabbitmq_files import index_v2
from rabbitmq_files.index_v2 import ENTRY_SIZE, HEADER_SIZE, STORED_SIZE

log = logging.getLogger("msgstore.queues")

_SECTOR = 512
"""Bytes that a disk writes as one."""
_WORDS = ENTRY_SIZE // 4
_OFFSET_WORD, _BODY_SIZE_WORD = 2, 5
"""Words of an entry: the lower half of the offset in ``N.qs``, and the size of the body."""
_FLAGS_BYTE, _ZERO_BYTE, _PLACE_BYTE = 1, 2, 3
_FLAGS, _PLACES = b"\0\1", b"\0\1\2"
"""Values of these bytes."""


def states(data: bytes) -> bytes:
    """Return the first byte of each entry in the content of ``N.qi``; 1: a message that is not acknowledged."""
    return data[HEADER_SIZE::ENTRY_SIZE]


def has_shared(data: bytes) -> bool:
    """Return True if a message may be in a message store."""
    return b"\1" in data[HEADER_SIZE + _PLACE_BYTE :: ENTRY_SIZE]


def body_sizes(data: bytes) -> array[int]:
    return _words(data, _BODY_SIZE_WORD)


def whole_entries(data: bytes) -> bytes:
    """Return the content of ``N.qi`` without an entry at its end that is cut: its message was not confirmed."""
    return data[: len(data) - max(len(data) - HEADER_SIZE, 0) % ENTRY_SIZE]


def reaches(data: bytes, stored: int) -> bool:
    """Return True if no message of the entries begins behind the end of ``N.qs``, which has ``stored`` bytes."""
    return max(_words(data, _OFFSET_WORD), default=0) < max(stored, 1)


def transient(data: bytes) -> list[int]:
    """Return the rows of transient messages."""
    flags, of_entry = data[HEADER_SIZE + _FLAGS_BYTE :: ENTRY_SIZE], states(data)
    if of_entry.count(1) <= flags.count(1):
        return []
    return [row for row, state in enumerate(of_entry) if state == 1 and not flags[row] & 1]


def damaged(data: bytes) -> list[int]:
    """Return the rows of entries that nobody has written. Each was a message: it has a place, and what a crash may leave of one
    that was overwritten with zeros has none."""
    of_entry, flags, zeros, places = (data[HEADER_SIZE + byte :: ENTRY_SIZE] for byte in range(4))
    is_sound = len(places) - places.count(0) == of_entry.count(1) and not (
        of_entry.translate(None, _FLAGS)
        or flags.translate(None, _FLAGS)
        or zeros.translate(None, b"\0")
        or places.translate(None, _PLACES)
    )
    if is_sound:
        return []
    begins = range(HEADER_SIZE, len(data), ENTRY_SIZE)
    return [row for row, begin in enumerate(begins) if _is_damaged(data[begin : begin + ENTRY_SIZE])]


def _is_damaged(entry: bytes) -> bool:
    state, flags, zero, place = entry[:4]
    if not state and not place:
        return False
    if state != 1 or flags > 1 or zero or place not in _PLACES:
        return True
    return not place and any(entry[4:20])  # without a place, a message was never written


def unwritten(path: Path, data: bytes, stored: bytes) -> list[int]:
    """Return the rows of entries whose messages a crash has kept from ``N.qs``, the content of which is ``stored``: they were
    not confirmed. Behind them no message is whole. A message that is damaged otherwise stays: the queue reports it when it
    cannot read it. ``path``: of ``N.qi``."""
    found = index_v2.read_index(data)
    for offset, size, reason in found.damage:
        log.warning("%s: %d bytes at %d: %s", path, size, offset, reason)
    tail, never = list[index_v2.Entry](), list[index_v2.Entry]()
    for entry in found.entries:
        if entry.place == "memory":
            never.append(entry)
        elif entry.place == "own":
            if stored_term(stored, entry.stored_offset, entry.stored_size) is None:
                tail.append(entry)
            else:
                tail.clear()
    cut = [entry for entry in tail if _is_cut(stored, entry.stored_offset, entry.stored_size)]
    if cut:
        log.info("%s: %d messages at its end were cut by a crash, and are dropped", path, len(cut))
    return sorted((entry.offset - HEADER_SIZE) // ENTRY_SIZE for entry in (*never, *cut))


def stored_term(stored: bytes, offset: int, size: int) -> bytes | None:
    """Return the message at ``offset`` of a part of ``N.qs``, or None if it is not whole."""
    try:
        begin, _ = index_v2.read_stored(stored, offset, size, begin=0)
    except index_v2.StoredError:
        return None
    return stored[begin : begin + size]


def _is_cut(stored: bytes, offset: int, size: int) -> bool:
    """Return True if a part of the message was never written: it is behind the end of the file, or a sector with only zeros."""
    term, end = offset + STORED_SIZE, offset + STORED_SIZE + size
    if end > len(stored):
        return True
    begins = [offset, term, *range(term - term % _SECTOR + _SECTOR, end, _SECTOR)]
    return any(not stored[at:stop].strip(b"\0") for at, stop in pairwise([*begins, end]))


def _words(data: bytes, word: int) -> array[int]:
    """Return a word of every entry in the content of ``N.qi``."""
    words = array("I", data[HEADER_SIZE:])
    if sys.byteorder == "little":
        words.byteswap()
    return words[word::_WORDS]
