"""Segment of queue index v1: what its file has, and what the journal has of it. Reads entries, and makes the bytes that move
from the journal to the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from msgstore_queues.contract import Entry
from rabbitmq_files import index_v1
from rabbitmq_files.index_v1 import JOURNAL_PUBLISH, PERSISTENT_IN_SEGMENT, SEGMENT_PUBLISH, TRANSIENT_IN_JOURNAL

Place = tuple[int, int]
"""Offset of a publish in its file, and the offset behind it."""
Row = tuple[int, Place]
"""Position of a message, and the place of its publish."""


@attrs.define(eq=False)
class Segment:
    """Every publish in the file has one mark, or two if it is acknowledged."""

    number: int
    first: int
    """Its first position."""
    live: int = 0
    """Messages that are not acknowledged, in the file or in the journal."""
    size: int = 0
    """Bytes of ``N.idx`` that count."""
    has_file: bool = False
    is_torn: bool = False
    """The file may have bytes behind ``size``, from a write that failed or was cut."""
    is_unsure: bool = False
    """Entries of the file are in the journal, too: the process that wrote them may not have synced the file."""
    may_have_shared: bool = False
    """False: all messages are embedded."""
    publishes: dict[int, Place] = attrs.field(factory=dict)
    """Position to place, of messages that are in the journal only, and not acknowledged."""
    acks: set[int] = attrs.field(factory=set)
    """Positions of messages in the file whose acknowledgement is in the journal only."""
    unmarked: list[int] = attrs.field(factory=list)
    """Positions of publishes in the file without a mark."""
    places: dict[int, Place] | None = None
    """Messages that the file has as not acknowledged. None: the file must be read for that."""

    @property
    def must_be_written(self) -> bool:
        return bool(self.publishes or self.acks or self.unmarked or self.is_torn or self.is_unsure)


def moved(segment: Segment, journal: bytes) -> bytes:
    """Return what the file of a segment gets from the content of the journal."""
    first = segment.first
    marks = [index_v1.encode_mark(position - first) for position in (*segment.unmarked, *sorted(segment.acks))]
    new = sorted(segment.publishes.items())
    return b"".join(marks + [index_v1.move_to_segment(journal, begin, end, at - first) for at, (begin, end) in new])


def entries_of(rows: Iterable[Row], data: bytes, base: int, *, is_journal: bool, terms: bool) -> Iterator[Entry]:
    """Yield entries. ``data``: the part of a file that begins at ``base``. A row that is not whole in it is left out."""
    publish = JOURNAL_PUBLISH if is_journal else SEGMENT_PUBLISH
    unpack, head_size, size = publish.unpack_from, publish.size, len(data)
    flag = TRANSIENT_IN_JOURNAL if is_journal else PERSISTENT_IN_SEGMENT
    for position, (begin, end) in rows:
        if end - base > size:
            continue
        head, msg_id, expiry_us, body_size, embedded = unpack(data, begin - base)
        is_persistent = bool(head & flag) != is_journal
        term = data[begin - base + head_size : end - base] if terms and embedded else None
        yield Entry(position, is_persistent, msg_id, body_size, expiry_us, term, not embedded)
