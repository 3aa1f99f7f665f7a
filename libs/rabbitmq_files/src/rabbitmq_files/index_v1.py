"""Queue index of version 1: segments ``N.idx``, and the journal ``journal.jif``, of RabbitMQ up to 4.2.

A publish is in a segment or in the journal, or after a crash in both; so are its marks "delivered" and "acknowledged".
Delivered says nothing: 3.10 writes it for every message. Source: ``rabbit_queue_index.erl`` of RabbitMQ 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

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
    acknowledged: set[int] = field(default_factory=set)
    end: int = 0
    """Offset at which reading stopped."""
    reason: str = ""
    """Reason for which it stopped before the end of the file."""


def read_segment(data: Buffer) -> IndexFile:
    """Read ``N.idx``: up to its end, or the first bytes that are no record."""
    found = IndexFile()
    delivered: set[int] = set()
    at, size = 0, len(data)
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
    return _ended(found, data, at)


def read_journal(data: Buffer) -> IndexFile:
    """Read ``journal.jif``: up to its end, the zeros after an unclean stop, or the first bytes that are no record."""
    found = IndexFile()
    at, size = 0, len(data)
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
    return _ended(found, data, at)


def _publish(data: Buffer, at: int, head: int, *, is_persistent: bool) -> Publish | None:
    """Return the publish at ``at``, or None if it is cut."""
    begin = at + head
    if begin + _BODY.size > len(data):
        return None
    msg_id, expiry, body_size, embedded = _BODY.unpack_from(data, begin)
    term = begin + _BODY.size
    if term + embedded > len(data):
        return None
    return Publish(at, term + embedded - at, is_persistent, msg_id, expiry, body_size, term, embedded)


def _ended(found: IndexFile, data: Buffer, at: int) -> IndexFile:
    found.end = at
    if data[at : at + _CHECKED_REST].strip(b"\0"):
        found.reason = "bytes that are no entry, or one that is cut"
    return found


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
