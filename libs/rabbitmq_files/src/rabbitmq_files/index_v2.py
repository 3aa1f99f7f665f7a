"""Queue index of version 2: segments ``N.qi``, with the messages of the queue in ``N.qs``, since RabbitMQ 3.10.

A ``.qs`` file keeps acknowledged messages until the whole segment goes, so it can be read without its ``.qi``. Sources:
``rabbit_classic_queue_index_v2.erl`` and ``rabbit_classic_queue_store_v2.erl`` of RabbitMQ 3.10.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Literal, NamedTuple

from rabbitmq_files.terms import Buffer

INDEX_MAGIC, STORE_MAGIC = b"RCQI", b"RCQS"
VERSION = 2
HEADER_SIZE = 64
ENTRY_SIZE = 32
MAX_ENTRIES = 2**20
"""Entries of a segment that are read. Brokers have 4,096, unless they are configured otherwise."""
_CHECKED_REST = 2**26
"""Bytes after the last entry that are checked for others than zeros. A sparse file may claim any size."""

_NOT_ZERO = re.compile(rb"[^\0]")
_HEADER = Struct(">4sBQQ")
_ENTRY = Struct(">BBBB16sIQ")
_OWN_ENTRY = Struct(">BBBBQIIIQ")
_STORED = Struct(">IBHB")
STORED_SIZE = _STORED.size
"""Bytes before a message in ``.qs``."""
_SHARED, _OWN = 1, 2
"""Kinds of places; 0 is in memory only."""

Place = Literal["memory", "shared", "own"]


class Entry(NamedTuple):
    """A message of the queue that is not acknowledged."""

    number: int
    """Number of the message, counted from the start of the queue."""
    offset: int
    """Offset of the entry in ``.qi``."""
    is_persistent: bool
    place: Place
    """``shared``: in the store of the vhost. ``own``: in ``.qs``. ``memory``: it was never written."""
    msg_id: bytes
    """16 bytes if shared, else empty."""
    stored_offset: int
    stored_size: int
    """Offset in ``.qs`` of the eight bytes before the message, and size of the message without them."""
    body_size: int
    expiry_us: int
    """Microseconds since the epoch; 0: does not expire."""


@dataclass(slots=True)
class Segment:
    """Content of ``.qi``."""

    first: int = 0
    """Number of the first message of the segment."""
    stop: int = 0
    entries: list[Entry] = field(default_factory=list)
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    """Offset, size and reason of what cannot be read."""


class StoredError(ValueError):
    """There is no whole message at an offset of ``.qs``."""


def read_index(data: Buffer) -> Segment:
    """Read ``N.qi``. Entries that cannot be read are damage, the others are still read."""
    found = Segment()
    if reason := header_damage(data, INDEX_MAGIC):
        if data[:_CHECKED_REST].strip(b"\0"):
            found.damage.append((0, min(len(data), HEADER_SIZE), reason))
        return found
    _, _, found.first, found.stop = _HEADER.unpack_from(data)
    count = min((len(data) - HEADER_SIZE) // ENTRY_SIZE, found.stop - found.first, MAX_ENTRIES)
    for row in range(count):
        at = HEADER_SIZE + row * ENTRY_SIZE
        if data[at] == 0:
            continue
        status, flags, zero, kind, place, body_size, expiry = _ENTRY.unpack_from(data, at)
        if status != 1 or flags > 1 or zero or kind > _OWN:
            found.damage.append((at, ENTRY_SIZE, "an entry that no broker writes"))
            continue
        number, persistent = found.first + row, bool(flags)
        if kind == _SHARED:
            found.entries.append(Entry(number, at, persistent, "shared", place, 0, 0, body_size, expiry))
        elif kind == _OWN:
            offset, size = int.from_bytes(place[:8], "big"), int.from_bytes(place[8:12], "big")
            found.entries.append(Entry(number, at, persistent, "own", b"", offset, size, body_size, expiry))
        else:
            found.entries.append(Entry(number, at, persistent, "memory", b"", 0, 0, body_size, expiry))
    end = HEADER_SIZE + count * ENTRY_SIZE
    if data[end : end + _CHECKED_REST].strip(b"\0"):
        found.damage.append((end, len(data) - end, "an entry that is cut, or after the last number of the segment"))
    _drop_overlapping(found)
    return found


def live_rows(data: Buffer) -> Iterator[tuple[int, bool, bytes, int, int, int, int]]:
    """Yield the live entries in ``data``, whole entries without a header: row, persistence, id, offset and size in ``.qs``,
    size of the body, and expiry. The id is empty for a message in ``.qs``, and its size there 0 for one in the shared store.
    What :func:`read_index` calls damage is left out, and so is a message in memory only."""
    for row, (status, flags, zero, kind, offset, size, _, body_size, expiry) in enumerate(_OWN_ENTRY.iter_unpack(data)):
        if status != 1 or flags > 1 or zero:
            continue
        if kind == _OWN and size:
            yield row, flags == 1, b"", offset, size, body_size, expiry
        elif kind == _SHARED:
            at = row * ENTRY_SIZE + 4
            yield row, flags == 1, bytes(data[at : at + 16]), 0, 0, body_size, expiry


def _drop_overlapping(found: Segment) -> None:
    """Take entries whose messages overlap in ``.qs`` as damage, so that all of them together are not larger than the file. Of
    two, the one that ends later is dropped: its size may be wrong."""
    end, dropped = 0, set()
    own = [entry for entry in found.entries if entry.place == "own"]
    for entry in sorted(own, key=lambda entry: entry.stored_offset + entry.stored_size):
        if entry.stored_offset < end:
            found.damage.append((entry.offset, ENTRY_SIZE, "an entry whose message overlaps that of another one"))
            dropped.add(entry.number)
        else:
            end = entry.stored_offset + STORED_SIZE + entry.stored_size
    if dropped:
        found.entries = [entry for entry in found.entries if entry.number not in dropped]


def header_damage(data: Buffer, magic: bytes) -> str:
    """Return the reason for which the file has no sound header, or an empty text."""
    if len(data) < HEADER_SIZE:
        return "shorter than a header"
    found, version, first, stop = _HEADER.unpack_from(data)
    if found != magic or version != VERSION:
        return f"begins with {data[:5].hex(' ')}, not with {magic.decode()} and version {VERSION}"
    return "" if first <= stop else f"has the numbers {first} to {stop}"


def read_stored(data: Buffer, offset: int, size: int, *, begin: int = HEADER_SIZE) -> tuple[int, bool]:
    """Return the offset of the message whose entry names this place in ``.qs``, and True if it has a checksum, which agrees.
    ``begin``: offset of the first message, if ``data`` is a part of the file. Raises StoredError."""
    term = offset + STORED_SIZE
    if offset < begin or term + size > len(data):
        raise StoredError(f"the {STORED_SIZE + size} bytes at offset {offset} are not in the file")
    found, flags, checksum, zero = _STORED.unpack_from(data, offset)
    if found != size or flags > 1 or zero:
        raise StoredError(f"no message of {size} bytes is there")
    if flags and zlib.crc32(data[term : term + size]) & 0xFFFF != checksum:
        raise StoredError("its checksum differs")
    return term, bool(flags)


def walk_stored(data: Buffer, start: int = HEADER_SIZE) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each whole message in ``.qs``, acknowledged or not; at last, of bytes that are none. For these
    and for a message whose checksum differs, :func:`read_stored` raises StoredError. ``start``: offset of a message."""
    at = 0 if header_damage(data, STORE_MAGIC) else start
    while at and at + STORED_SIZE <= len(data):
        size, flags, _, zero = _STORED.unpack_from(data, at)
        if not size and (after := _after_hole(data, at)):
            at = after
            continue
        if flags > 1 or zero or not size or at + STORED_SIZE + size > len(data):
            break
        yield at, size
        at += STORED_SIZE + size
    if data[at : at + _CHECKED_REST].strip(b"\0"):
        yield at, max(len(data) - at - STORED_SIZE, 0)


def _after_hole(data: Buffer, at: int) -> int:
    """Return the offset of the message behind the zeros at ``at``, if its checksum agrees, else 0. RabbitMQ 4 leaves zeros for
    a message that is acknowledged before it is written."""
    if (match := _NOT_ZERO.search(data, at, at + _CHECKED_REST)) is None:
        return 0
    for start in range(max(match.start() - 3, at), match.start() + 1):  # a size begins with up to three zeros
        try:
            if read_stored(data, start, int.from_bytes(data[start : start + 4], "big"))[1]:
                return start
        except StoredError:
            continue
    return 0


def encode_header(magic: bytes, first: int, stop: int) -> bytes:
    """Encode the header of ``.qi`` (INDEX_MAGIC) or ``.qs`` (STORE_MAGIC)."""
    return _HEADER.pack(magic, VERSION, first, stop).ljust(HEADER_SIZE, b"\0")


def encode_shared(msg_id: bytes, body_size: int, *, is_persistent: bool = True, expiry_us: int = 0) -> bytes:
    """Encode the entry of a message in the shared store."""
    return _ENTRY.pack(1, is_persistent, 0, _SHARED, msg_id, body_size, expiry_us)


def encode_own(
    stored_offset: int, stored_size: int, body_size: int, *, is_persistent: bool = True, expiry_us: int = 0
) -> bytes:
    """Encode the entry of a message in ``.qs``."""
    return _OWN_ENTRY.pack(1, is_persistent, 0, _OWN, stored_offset, stored_size, 0, body_size, expiry_us)


def encode_stored(term: bytes) -> bytes:
    """Encode a message for ``.qs``, with its checksum."""
    return _STORED.pack(len(term), 1, zlib.crc32(term) & 0xFFFF, 0) + term


NewEntry = tuple[int, bool, bytes, int, int, bytes | None]
"""A message that :func:`encode_run` encodes: position, which it passes over, persistence, id, size of the body, expiry, and the
message, or None for one in the shared store, whose id counts."""


def encode_run(messages: Iterable[NewEntry], offset: int) -> tuple[list[bytes], list[bytes]]:
    """Encode many entries, and for ``.qs`` their messages, of which the first comes to ``offset``."""
    pack, pack_stored, crc32 = _OWN_ENTRY.pack, _STORED.pack, zlib.crc32
    entries, stored = list[bytes](), list[bytes]()
    add, add_stored = entries.append, stored.append
    for _, is_persistent, msg_id, body_size, expiry_us, term in messages:
        if term is None:
            add(_ENTRY.pack(1, is_persistent, 0, _SHARED, msg_id, body_size, expiry_us))
        else:
            size = len(term)
            add(pack(1, is_persistent, 0, _OWN, offset, size, 0, body_size, expiry_us))
            add_stored(pack_stored(size, 1, crc32(term) & 0xFFFF, 0))
            add_stored(term)
            offset += STORED_SIZE + size
    return entries, stored
