"""Queue index of version 1: segments ``N.idx``, and the journal ``journal.jif``, of RabbitMQ up to 4.2.

A publish is in a segment or in the journal, or after a crash in both; so are its marks "delivered" and "acknowledged".
Delivered says nothing: 3.10 writes it for every message. Source: ``rabbit_queue_index.erl`` of RabbitMQ 3.10.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct, pack
from typing import NamedTuple

from rabbitmq_files.messages import MessageError, read_message
from rabbitmq_files.terms import Buffer

SEGMENT_ENTRIES = 2048
"""Entries of a segment, if ``.config`` of the vhost says it."""
OLD_SEGMENT_ENTRIES = 16384
"""The same in a vhost without that file."""
MAX_ENTRIES = 1 << 14
"""Entries of a segment whose number fits into its 14 bits."""
ID_OFFSET = {False: 2, True: 8}
"""Offset of the id in a publish of a segment, and of the journal."""

_CHECKED_REST = 2**26
"""Bytes after the last entry that are checked for others than zeros. A sparse file may claim any size."""
_BODY = Struct(">16sQII")
_SEGMENT_HEAD, _JOURNAL_HEAD = Struct(">H"), Struct(">Q")
SEGMENT_PUBLISH, JOURNAL_PUBLISH = Struct(">H16sQII"), Struct(">Q16sQII")
"""A publish without its message: number with flags, id, expiry, size of the body, size of the message or 0."""
JOURNAL_MARK_SIZE = 8
_CHECKED = 2 << 62 | 1 << 61
"""Mark "delivered" with a checksum in place of a number: CRC-32 of what is between it and the mark before. Only msgstore writes
it. Numbers are smaller."""
CHECKED_JOURNAL = (_CHECKED | 1 << 32 | int.from_bytes(b"msgs", "big")).to_bytes(8, "big")
"""The first bytes of a journal whose entries have such marks. A crash may have left any part of what follows the last one."""
PERSISTENT_IN_SEGMENT, TRANSIENT_IN_JOURNAL = 1 << 14, 1 << 62
"""Flags of a publish beside its number."""
_SEGMENT_CHECKED, _JOURNAL_CHECKED = Struct(">H16xH10xI"), Struct(">24xH10xI")
"""Checked fields of a publish: number with flags (in a segment), first two bytes of the expiry, size of the message."""
_MAX_EXPIRY_HEAD = 2**4
_MAX_EXPIRY = _MAX_EXPIRY_HEAD << 48
"""A time in the year 2112: a later one is damage."""
# Id, expiry, size of the body, and the size of a message that begins there, or 0. Or a message without its publish.
_BODY_SHAPE = rb"(?!\0{16}).{16}\0[\0-\x0f].{10}(?:\0{4}|.{4}\x83h)"
_TERM = b"\x83h"
_SEGMENT_PUBLISH = re.compile(rb"(?=[\x80-\xff]." + _BODY_SHAPE + rb")|(?P<term>\x83h)", re.DOTALL)
_JOURNAL_PUBLISH = re.compile(rb"(?=[\0\x40]\0\0.{5}" + _BODY_SHAPE + rb")|(?P<term>\x83h)", re.DOTALL)
_FOLLOWING = 8
"""Entries that must follow a publish without its message, for reading to go on with it after damage."""
_SEARCHED = 2**24
"""Bytes after damage that are searched for the next entry."""
_MAX_FAILED = 1000
"""Bytes that look like an entry and are none, before the search for the next one ends."""


class Publish(NamedTuple):
    """A message that entered the queue."""

    offset: int
    """Offset of the record in its file."""
    size: int
    """Bytes of the record."""
    is_persistent: bool
    msg_id: bytes
    expiry_us: int
    """Microseconds since the epoch; 0: does not expire."""
    body_size: int
    term_offset: int
    """Offset in the file of the message that is embedded."""
    term_size: int
    """0: the message is in the shared store."""


@dataclass(slots=True)
class IndexFile:
    """Entries of one file, by number: from 0 in a segment, from the start of the queue in the journal."""

    publishes: dict[int, Publish] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    """In a segment: the numbers of messages with one mark or two. Empty in the journal."""
    acknowledged: set[int] = field(default_factory=set)
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    """Offset, size and reason of what cannot be read."""
    end: int = 0
    """Offset behind the last entry."""


@dataclass(slots=True)
class Places:
    """Offsets of the publishes of one file, by number, and its marks. An index that reads few entries needs no more."""

    publishes: dict[int, tuple[int, int]]
    """Offset of the record, and the offset behind it."""
    delivered: set[int]
    """As in :class:`IndexFile`."""
    acknowledged: set[int]
    end: int
    """Offset behind the last entry."""
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    """Offset, size and reason of what cannot be read."""


def read_segment(data: Buffer) -> IndexFile:
    """Read ``N.idx``. After damage, reading goes on at the next publish that is surely one."""
    found = IndexFile()
    return _read(found, data, lambda at: _read_segment(data, at, found), _SEGMENT_PUBLISH, 2)


def read_journal(data: Buffer) -> IndexFile:
    """Read ``journal.jif``, up to the zeros after an unclean stop. After damage, reading goes on at the next publish that is
    surely one. If the journal has checksums, it ends before the first one that is wrong."""
    found = IndexFile()
    part = _checked_part(data)
    _read(found, part, lambda at: _read_journal(part, at, found), _JOURNAL_PUBLISH, 8)
    found.damage += _unchecked(data, len(part))
    return found


def is_checked(journal: Buffer) -> bool:
    """Return True if the journal has checksums."""
    return journal[: len(CHECKED_JOURNAL)] == CHECKED_JOURNAL


def _checked_part(journal: Buffer) -> Buffer:
    """Return a journal up to the last checksum before one that is wrong. One without checksums is returned as it is."""
    if not is_checked(journal):
        return journal
    end = at = len(CHECKED_JOURNAL)
    while at + JOURNAL_MARK_SIZE <= len(journal):
        kind = journal[at] >> 6
        if kind < 2:
            if at != end or at + JOURNAL_PUBLISH.size > len(journal):
                break
            at += JOURNAL_PUBLISH.size + JOURNAL_PUBLISH.unpack_from(journal, at)[4]
        elif kind == 3:
            at += JOURNAL_MARK_SIZE
        elif journal[at : at + JOURNAL_MARK_SIZE] == _JOURNAL_HEAD.pack(_CHECKED | zlib.crc32(journal[end:at])):
            at = end = at + JOURNAL_MARK_SIZE
        else:
            break
    return journal[:end]


def _unchecked(journal: Buffer, end: int) -> list[tuple[int, int, str]]:
    """Return as damage what follows ``end``, unless it is zeros."""
    if not journal[end : end + _CHECKED_REST].strip(b"\0"):
        return []
    return [(end, len(journal) - end, "not written whole, as by a power failure")]


def _read(found: IndexFile, data: Buffer, read_from: Callable[[int], int], shape: re.Pattern[bytes], head: int) -> IndexFile:
    """Read a file. ``read_from``: reads entries from an offset, and returns that of the first bytes that are none."""
    end = at = read_from(0)
    while data[end : end + _CHECKED_REST].strip(b"\0"):
        start = None if _is_cut(data, end, head) else _next_publish(data, end + 1, shape, head)
        if start is None:
            found.damage.append((end, len(data) - end, "bytes that are no entry, or one that is cut"))
            break
        found.damage.append((end, start - end, "bytes that are no entry"))
        end = read_from(start)
    found.end = end
    if data and not at and not found.damage:
        found.damage.append((0, len(data), "has only zeros: its entries were lost, as by a power failure"))
    return found


def _is_cut(data: Buffer, at: int, head: int) -> bool:
    """Return True if the publish at ``at`` is the last one, of which the end is missing: its body may look like entries."""
    if at + head + _BODY.size > len(data):
        return False
    _, expiry, _, embedded = _BODY.unpack_from(data, at + head)
    term = at + head + _BODY.size
    is_whole = _end_of_message(data, term) > term + 1
    return data[term : term + 2] == _TERM and expiry < _MAX_EXPIRY and term + embedded > len(data) and not is_whole


def _next_publish(data: Buffer, start: int, shape: re.Pattern[bytes], head: int) -> int | None:
    """Return the offset of the next publish that is surely one: its message is whole, or many entries follow it. A message
    whose publish is damaged is skipped: its body may be an index."""
    at, stop = start, start + _SEARCHED
    for _ in range(_MAX_FAILED):
        if (match := shape.search(data, at, stop)) is None:
            return None
        at = match.start()
        publish = None if match["term"] else _publish(data, at, head, is_persistent=True)
        if publish and (_has_message(data, publish) if publish.term_size else _is_followed(data, at, head)):
            return at
        at = _end_of_message(data, at) if data[at : at + 2] == _TERM else at + 1
    return None


def _has_message(data: Buffer, publish: Publish) -> bool:
    try:
        message, end = read_message(data, publish.term_offset)
    except MessageError:
        return False
    return end - publish.term_offset == publish.term_size and message.indexed_size in (None, publish.body_size)


def _end_of_message(data: Buffer, at: int) -> int:
    """Return the offset after the message at ``at``; after its first byte if there is none."""
    try:
        return read_message(data, at)[1]
    except MessageError:
        return at + 1


def _is_followed(data: Buffer, at: int, head: int) -> bool:
    """Return True if further entries follow the publish at ``at``: many, or up to the end of the file or its zeros."""
    one, found = head + _BODY.size, IndexFile()
    part = data[at : at + (_FOLLOWING + 1) * one]
    end = _read_segment(part, 0, found) if head == 2 else _read_journal(part, 0, found)
    return end + one > (_FOLLOWING + 1) * one or not any(part[end:])


def _read_segment(data: Buffer, at: int, found: IndexFile) -> int:
    """Read entries from ``at`` on. Return the offset of the first bytes that are none."""
    size, delivered = len(data), found.delivered
    while at + 2 <= size:
        (head,) = _SEGMENT_HEAD.unpack_from(data, at)
        number = head & 0x3FFF
        if head & 0x8000:
            if (publish := _publish(data, at, 2, is_persistent=bool(head & 0x4000))) is None:
                break
            found.publishes.setdefault(number, publish)
            at += publish.size
        elif head & 0x4000:
            (found.acknowledged if number in delivered else delivered).add(number)
            at += 2
        else:
            break
    return at


def _read_journal(data: Buffer, at: int, found: IndexFile) -> int:
    """Read entries from ``at`` on. Return the offset of the first bytes that are none."""
    size = len(data)
    while at + 8 <= size:
        (head,) = _JOURNAL_HEAD.unpack_from(data, at)
        kind, number = head >> 62, head & 0x3FFFFFFFFFFFFFFF
        if kind >= 2:
            if kind == 3:
                found.acknowledged.add(number)
            at += 8
            continue
        publish = _publish(data, at, 8, is_persistent=kind == 0)
        if publish is None or not (head or any(data[at : at + 40])):
            break
        found.publishes.setdefault(number, publish)
        at += publish.size
    return at


def _publish(data: Buffer, at: int, head: int, *, is_persistent: bool) -> Publish | None:
    """Return the publish at ``at``, or None if it is cut or damaged."""
    begin = at + head
    if begin + _BODY.size > len(data):
        return None
    msg_id, expiry, body_size, embedded = _BODY.unpack_from(data, begin)
    term = begin + _BODY.size
    if term + embedded > len(data) or expiry >= _MAX_EXPIRY:
        return None
    return Publish(at, term + embedded - at, is_persistent, msg_id, expiry, body_size, term, embedded)


def find_in_segment(data: Buffer) -> Places:
    """Find the entries of ``N.idx``, as :func:`read_segment`, without reading them. Several times faster, unless the file is
    damaged."""
    publishes, delivered, acknowledged = dict[int, tuple[int, int]](), set[int](), set[int]()
    unpack, at, size = _SEGMENT_CHECKED.unpack_from, 0, len(data)
    while at + SEGMENT_PUBLISH.size <= size and data[at] & 0x80:
        head, expiry_head, embedded = unpack(data, at)
        end = at + SEGMENT_PUBLISH.size + embedded
        if end > size or expiry_head >= _MAX_EXPIRY_HEAD:
            break
        number = head & 0x3FFF
        publishes.setdefault(number, (at, end))
        at = end
        while at + 2 <= size and data[at] >> 6 == 1:
            number = (data[at] & 0x3F) << 8 | data[at + 1]
            (acknowledged if number in delivered else delivered).add(number)
            at += 2
    if at == size:
        return Places(publishes, delivered, acknowledged, at)
    return _places(read_segment(data))


def find_in_journal(data: Buffer) -> Places:
    """Find the entries of ``journal.jif``, as :func:`read_journal`, without reading them."""
    journal, data = data, _checked_part(data)
    publishes, acknowledged = dict[int, tuple[int, int]](), set[int]()
    unpack, at, size = _JOURNAL_HEAD.unpack_from, 0, len(data)
    while at + 8 <= size:
        (head,) = unpack(data, at)
        number = head & 0x3FFFFFFFFFFFFFFF
        if data[at] & 0x80:
            if data[at] & 0x40:
                acknowledged.add(number)
            at += 8
            continue
        if at + JOURNAL_PUBLISH.size > size or not (head or any(data[at : at + JOURNAL_PUBLISH.size])):
            break
        expiry_head, embedded = _JOURNAL_CHECKED.unpack_from(data, at)
        end = at + JOURNAL_PUBLISH.size + embedded
        if end > size or expiry_head >= _MAX_EXPIRY_HEAD:
            break
        publishes.setdefault(number, (at, end))
        at = end
    if at == size:
        return Places(publishes, set(), acknowledged, at, _unchecked(journal, size))
    return _places(read_journal(journal))


def _places(found: IndexFile) -> Places:
    publishes = {number: (one.offset, one.offset + one.size) for number, one in found.publishes.items()}
    return Places(publishes, found.delivered, found.acknowledged, found.end, found.damage)


def encode_publish(number: int, body: bytes, *, is_persistent: bool = True) -> bytes:
    """Encode the publish of a segment. ``number``: in the segment. ``body``: from :func:`encode_body`."""
    return _SEGMENT_HEAD.pack(0x8000 | is_persistent << 14 | number) + body


def encode_journal_publish(number: int, body: bytes, *, is_persistent: bool = True) -> bytes:
    """Encode the publish of a journal. ``number``: counted from the start of the queue."""
    return _JOURNAL_HEAD.pack((not is_persistent) << 62 | number) + body


def encode_body(msg_id: bytes, body_size: int, term: bytes = b"", expiry_us: int = 0) -> bytes:
    """Encode what both publishes have in common. ``term``: the message, if it is embedded."""
    return _BODY.pack(msg_id, expiry_us, body_size, len(term)) + term


def encode_mark(number: int) -> bytes:
    """Encode a mark of a segment: the first is "delivered", the second "acknowledged"."""
    return _SEGMENT_HEAD.pack(0x4000 | number)


def encode_journal_mark(number: int, *, is_acknowledged: bool) -> bytes:
    """Encode a mark of a journal."""
    return _JOURNAL_HEAD.pack((3 if is_acknowledged else 2) << 62 | number)


def encode_journal_message(
    number: int, msg_id: bytes, body_size: int, term: bytes, expiry_us: int, *, is_persistent: bool, is_checked: bool = False
) -> bytes:
    """Encode the publish of a journal and its mark "delivered", in one step: for those who write many. ``is_checked``: the
    mark has a checksum of the publish instead of its number."""
    head = number if is_persistent else number | TRANSIENT_IN_JOURNAL
    publish = JOURNAL_PUBLISH.pack(head, msg_id, expiry_us, body_size, len(term)) + term
    return publish + _JOURNAL_HEAD.pack(_CHECKED | zlib.crc32(publish) if is_checked else 2 << 62 | number)


def encode_journal_acks(numbers: Iterable[int], *, is_checked: bool = False) -> bytes:
    """Encode marks "acknowledged" of a journal. ``is_checked``: with a mark that has their checksum behind them."""
    marks = [3 << 62 | number for number in numbers]
    data = pack(f">{len(marks)}Q", *marks)
    return data + _JOURNAL_HEAD.pack(_CHECKED | zlib.crc32(data)) if is_checked else data


def move_to_segment(journal: bytes, begin: int, end: int, number: int) -> bytes:
    """Encode the publish of a segment, and its mark "delivered", from that of a journal at ``begin`` to ``end``."""
    head = number if journal[begin] & 0x40 else number | PERSISTENT_IN_SEGMENT
    return _SEGMENT_HEAD.pack(0x8000 | head) + journal[begin + 8 : end] + _SEGMENT_HEAD.pack(0x4000 | number)
