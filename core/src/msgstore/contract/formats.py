"""Segment formats: the byte layout of a segment file.

A format is a set of pure functions of bytes: it opens no file and keeps no state. Work is done in batches: a flush encodes a
batch, a scan returns columns. A complete format with records of size (4 bytes, big-endian), id and body::

    class Plain:
        header = b""
        max_body = 2**32 - 21

        def __init__(self, context): pass

        def encode(self, ids, bodies):
            sizes = [20 + len(body) for body in bodies]
            heads = map(struct.Struct(">I").pack, sizes)
            return b"".join(chain.from_iterable(zip(heads, ids, bodies))), sizes

        def decode(self, msg_id, record):
            if record[:20] != struct.pack(">I", len(record)) + msg_id: raise RecordError("mismatch")
            return record[20:]

        def body_span(self, data, offset, size):
            return offset + 20, offset + size

        def scan(self, data, *, start=0, check_body=None):
            scan, offset, total = SegmentScan(), start, len(data)
            end = ("clean", None)
            while offset < total and end[0] == "clean":
                size = int.from_bytes(data[offset:offset + 4], "big")
                msg_id, body = data[offset + 4:offset + 20], slice(offset + 20, offset + size)
                if total - offset < 20 or size > total - offset: end = ("torn", None)
                elif size < 20: end = ("corrupt", "invalid_message_size")
                elif check_body and not check_body(msg_id, data[body]): end = ("corrupt", "invalid_message_body")
                else:
                    scan.records.add(msg_id, offset, size)
                    offset += size
            scan.separate_copies()
            return scan.ended(end[0], offset, end[1])

        def find_chain(self, data, start, length=8):
            return next((at for at in range(start, len(data)) if self.is_chain(data, at, length)), None)

        def is_chain(self, data, offset, length):
            while length and offset < len(data):
                size = int.from_bytes(data[offset:offset + 4], "big")
                if not 20 <= size <= len(data) - offset: return False
                offset, length = offset + size, length - 1
            return True
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from struct import Struct
from typing import Any, Literal, Protocol, TypeAlias

import attrs
from attrs.validators import instance_of

from msgstore.contract.descriptors import Descriptor
from msgstore.contract.records import BoundRecord, Buffer

CheckBody: TypeAlias = Callable[[bytes, bytes], bool]
"""``check_body(msg_id, stored)``: False if the stored body is damaged."""
EndState = Literal["clean", "torn", "corrupt"]
HeaderState = Literal["ok", "bad_magic", "bad_version", "bad_checksum"]


@attrs.frozen(kw_only=True)
class SegmentFormatDescriptor(Descriptor):
    """``factory(FormatContext) -> SegmentFormat``. All capabilities that begin with "Segment format", FRAMED and FIELDS."""

    extension: str
    """Extension of its segment files: a dot, letters, digits and ``_``. ``.json`` and others of a store are refused."""
    generation: int = attrs.field(validator=instance_of(int))
    """Order of formats: a store refuses to write a lower generation next to a higher one. Equal ones go together in a store."""
    leftover_extensions: tuple[str, ...] = attrs.field(default=(), validator=instance_of(tuple))
    """Extensions of files that a killed collection of another program leaves, with records of this format. Each such file
    becomes a segment when a store is opened for writing."""


@attrs.frozen
class FormatContext:
    """Argument of a format's factory: an instance of the descriptor's ``options``, and record types for TYPED_RECORDS."""

    options: Any
    records: tuple[BoundRecord, ...] = ()
    record: str = "message"
    """Name of the record type of new messages; ``message`` is the format's own."""


_ulongs = partial(array, "Q")
_MANY_IDS, _ONE_ID = Struct("16s" * 1024), Struct("16s")


def split_ids(ids: bytes | bytearray | memoryview) -> list[bytes]:
    """Split a string of 16-byte ids. Unpacking a thousand at a time takes less than half the time of slicing."""
    many = len(ids) // _MANY_IDS.size * _MANY_IDS.size
    view = memoryview(ids)
    return list(chain.from_iterable(chain(_MANY_IDS.iter_unpack(view[:many]), _ONE_ID.iter_unpack(view[many:]))))


@attrs.define
class Columns:
    """Records as columns: 16 bytes of id, offset in the segment, size of the whole record, and type byte (or 0) of each."""

    ids: bytearray = attrs.field(factory=bytearray)
    offsets: array[int] = attrs.field(factory=_ulongs)
    sizes: array[int] = attrs.field(factory=_ulongs)
    types: bytearray = attrs.field(factory=bytearray)

    def __len__(self) -> int:
        return len(self.offsets)

    def id_list(self) -> list[bytes]:
        """Return the ids as a list."""
        return split_ids(self.ids)

    def rows(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Return (id, offset, size, type byte) of each record."""
        return zip(self.id_list(), self.offsets, self.sizes, self.types, strict=True)

    def add(self, msg_id: bytes, offset: int, size: int, type_byte: int = 0) -> None:
        """Add one record."""
        self.ids += msg_id
        self.offsets.append(offset)
        self.sizes.append(size)
        self.types.append(type_byte)

    def extend(self, ids: list[bytes], offsets: list[int], sizes: list[int], types: bytes | bytearray) -> None:
        """Add several records. A fast scan adds some thousand at a time."""
        self.ids += b"".join(ids)
        self.offsets.fromlist(offsets)
        self.sizes.fromlist(sizes)
        self.types += types


@attrs.frozen
class Damage:
    """A damaged span of a segment, with a reason of one word such as ``checksum_mismatch``."""

    offset: int
    size: int
    reason: str


@attrs.frozen
class ScanEnd:
    """Offset at which a scan stopped: at the end of the file (``clean``), at a record that the end of the file cuts off
    (``torn``, after a crash during a write), or at bytes that no writer wrote (``corrupt``, with a reason of one word). Fewer
    bytes than the head of a record, with which none can begin, are either of the last two."""

    state: EndState
    offset: int
    reason: str | None = None


@attrs.define
class SegmentScan:
    """Contents of one segment."""

    header: HeaderState | None = None
    """``ok``, ``bad_magic``, ``bad_version`` or ``bad_checksum``; None if the format has no header."""
    records: Columns = attrs.field(factory=Columns)
    """Intact records in order of their offsets; of several copies of an id the first."""
    duplicates: Columns = attrs.field(factory=Columns)
    """Later copies of an id, as an interrupted compaction leaves them."""
    hole_offsets: array[int] = attrs.field(factory=_ulongs)
    hole_sizes: array[int] = attrs.field(factory=_ulongs)
    damage: list[Damage] = attrs.field(factory=list)
    """Damaged spans after which the scan continued."""
    end: ScanEnd = ScanEnd("clean", 0)

    def separate_copies(self) -> None:
        """Move later copies of an id from ``records`` to ``duplicates``. Called once, after the last record was added."""
        everything = self.records
        if len(set(everything.id_list())) == len(everything):
            return
        self.records = Columns()
        seen: set[bytes] = set()
        for row in everything.rows():
            (self.duplicates if row[0] in seen else self.records).add(*row)
            seen.add(row[0])

    def ended(self, state: EndState, offset: int, reason: str | None = None) -> SegmentScan:
        """Set the end and return this scan."""
        self.end = ScanEnd(state, offset, reason)
        return self


class SegmentFormat(Protocol):
    """Layout of a segment. Methods are pure functions, called from any thread, several at a time."""

    header: bytes
    """First bytes of a new segment."""
    max_body: int
    """Size in bytes of the largest stored body of a record."""

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """Return all records of a batch as one string, and the size of each in bytes. A large body is a batch of its own.
        Ids of a batch may be equal. Does not raise: an option that cannot be written is refused by its class."""

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        """Return the stored body of one record. ``record`` has exactly the size that the index has for it.

        Called for each read. Raises RecordError if it is not a record of this id and size, or fails its own check. A record
        that it refuses with its own id is damage for ``scan``, too, or the end of it, and the other way round.
        """

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        """Return begin and end of the body of the record at ``offset``, as offsets of ``data``. The record was scanned. It has
        the stored body unchanged, in one piece."""

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        """Read a whole segment, or the part from ``start``, the offset of a record. Never raises, whatever the bytes.
        An ``mmap`` has fewer methods than bytes: see ``Buffer``.

        A body for which ``check_body`` returns False is corruption (``invalid_message_body``). Time is linear in records and
        bytes, and memory a small multiple of the bytes.
        """

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        """Return the first offset from ``start`` on at which ``length`` records, or records up to the end of the file, follow.
        Never raises, whatever the bytes.

        A scan from this offset finds a record or a ``Damage``. A chain of sizes alone is none: a format whose ``scan`` ends at
        a wrong checksum compares checksums here, too, at least that of the first record.

        Returns None if there is no such offset, also from a ``start`` at the end of the file or behind it. A format whose
        ``scan`` never ends before the end of the file, because it continues after all damage, may return None always.
        Salvage uses the offset after a corrupt span; recovery uses it to tell a torn write from damage.
        """


Write = tuple[int, bytes]
"""(offset in the segment, bytes)."""


@attrs.define  # not frozen: a segment can have ten thousand of these
class GapFill:
    """Writes that put records into a gap, in three steps. The engine syncs after each step.

    The records follow each other from the begin of the gap on, in the given order; what is left of the gap follows them, so
    the engine may truncate the segment there. After a crash during or after any step, a scan finds every record outside the
    gap. A write of ``prepare`` or ``seal`` that must not be torn lies within one 512-byte sector.
    """

    prepare: Sequence[Write] = ()
    """Writes that turn the gap into a hole, so that a scan skips what is written inside."""
    inside: Sequence[Write] = ()
    """Writes inside the gap."""
    seal: Sequence[Write] = ()
    """Writes that make the records visible to a scan."""


class CompactableFormat(SegmentFormat, Protocol):
    """A format with the capability COMPACTABLE. A gap is all bytes between two live records, or between the header and the
    first one: dead records and holes. Each gap begins where a record or a hole begins, and ends where one ends."""

    def gap_room(self, offset: int, size: int) -> int:
        """Return how many bytes of records fit into a gap of ``size`` bytes at ``offset``; 0 if none."""

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        """Return the writes for a gap that receives ``records``: whole records, together at most ``gap_room`` bytes.

        ``records`` is empty for a gap into which nothing moves, also if its ``gap_room`` is 0. Then ``GapFill()``, without
        writes, leaves the dead records and holes as they are.
        """
