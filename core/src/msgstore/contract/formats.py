"""Segment formats: the bytes of a whole file of records.

A format is a set of pure functions of bytes: it opens no file and keeps no state. Everything that happens per message is
batch-shaped: a flush encodes one batch, a scan returns columns.

A complete format, four-byte big-endian size, id, body, no holes inside (so nothing is ever compacted in place)::

    class Plain:
        header = b""
        max_body = 2**32 - 21

        def __init__(self, context): pass

        def encode(self, ids, bodies):
            sizes = [20 + len(body) for body in bodies]
            heads = map(struct.Struct(">I").pack, sizes)
            return b"".join(chain.from_iterable(zip(heads, ids, bodies))), sizes

        def decode(self, msg_id, record):
            if record[4:20] != msg_id: raise RecordError("id_mismatch")
            return record[20:]

        def body_span(self, data, offset, size):
            return offset + 20, offset + size

        def scan(self, data, *, start=0, check_body=None):
            scan, offset, total = SegmentScan(), start, len(data)
            end = ("clean", None)
            while offset < total and end[0] == "clean":
                size = int.from_bytes(data[offset:offset + 4], "big")
                if total - offset < 20 or size > total - offset: end = ("torn", None)
                elif size < 20: end = ("corrupt", "invalid_message_size")
                elif check_body and not check_body(data[offset + 20:offset + size]): end = ("corrupt", "invalid_message_body")
                else:
                    scan.records.add(data[offset + 4:offset + 20], offset, size)
                    offset += size
            scan.separate_copies()
            return scan.ended(end[0], offset, end[1])

        def find_chain(self, data, start, length=8):
            return next((at for at in range(start, len(data)) if self.holds(data, at, length)), None)

        def holds(self, data, offset, length):
            for _ in range(length):
                size = int.from_bytes(data[offset:offset + 4], "big")
                if not 20 <= size <= len(data) - offset: return False
                offset += size
                if offset == len(data): break
            return True

        def gap_room(self, offset, size): return 0
        def fill_gap(self, offset, size, records): return GapFill()
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Literal, Protocol

import attrs

from msgstore.contract.buffers import Buffer
from msgstore.contract.descriptors import Descriptor
from msgstore.contract.records import BoundRecord
from msgstore.contract.suffixes import RESERVED

EndState = Literal["clean", "torn", "corrupt"]
HeaderState = Literal["ok", "bad_magic", "bad_version", "bad_checksum"]

_EXTENSION = re.compile(r"\.[A-Za-z0-9_]+")
"""What segments are found by in a directory: with any other extension they would be written and never read."""


def _check_extension(_: object, __: object, value: str) -> None:
    if not isinstance(value, str) or _EXTENSION.fullmatch(value) is None:
        raise ValueError(f"the extension {value!r} is not '.' with letters, digits and '_' behind it, such as '.acme'")
    if value.lower() in RESERVED:
        raise ValueError(f"the extension {value!r} is that of other files of a store; choose another one, such as '.acme'")


def _check_generation(_: object, __: object, value: int) -> None:
    if type(value) is not int:
        raise ValueError(f"the generation {value!r} is not an integer such as 3")


def _check_leftover_extensions(descriptor: SegmentFormatDescriptor, __: object, value: tuple[str, ...]) -> None:
    if not isinstance(value, tuple):
        raise ValueError(f"the leftover extensions {value!r} are not a tuple such as ('.acme',)")  # noqa: TRY004 - as for every wrong value
    for extension in value:
        _check_extension(None, None, extension)
        if extension.lower() == descriptor.extension.lower():
            raise ValueError(f"the extension {extension!r} cannot be that of segments and of what is left over")


@attrs.frozen(kw_only=True)
class SegmentFormatDescriptor(Descriptor):
    """``factory(FormatContext) -> SegmentFormat``."""

    extension: str = attrs.field(validator=_check_extension)
    """How the files of this format end, with the dot: a segment is ``<number><extension>``. It says how to read. Behind
    the dot are letters, digits and ``_``. Endings of other files of a store, such as ``.tmp`` and ``.json``, are refused."""
    generation: int = attrs.field(validator=_check_generation)
    """Formats of a higher generation are newer: a store refuses to write an older one beside a newer one."""
    leftover_extensions: tuple[str, ...] = attrs.field(default=(), validator=_check_leftover_extensions)
    """How files end, with the dot, in which a program that was killed while it collected left records of this format, beside
    the segment of the same number or in its place. Each becomes a segment of its own when a store is opened for writing."""


@attrs.frozen
class FormatContext:
    """What a format's factory is called with."""

    options: Any
    """The backend's own keys: an instance of the descriptor's ``options``."""
    records: tuple[BoundRecord, ...] = ()
    """The record types that the store binds; empty for formats without TYPED_RECORDS."""
    record: str = "message"
    """The name of the record type that new messages are written as; ``message`` is the format's own."""


def _ulongs() -> array[int]:
    return array("Q")


_MANY_IDS = Struct("16s" * 1024)


def split_ids(ids: bytes | bytearray | memoryview) -> list[bytes]:
    """16 bytes an id; a thousand at a time costs less than half of what slices cost."""
    found: list[bytes] = []
    many = len(ids) // _MANY_IDS.size * _MANY_IDS.size
    for at in range(0, many, _MANY_IDS.size):
        found += _MANY_IDS.unpack_from(ids, at)
    for at in range(many, len(ids), 16):
        found.append(bytes(ids[at : at + 16]))
    return found


@attrs.define
class Columns:
    """Records side by side: entry ``i`` has its id at ``ids[16 * i : 16 * i + 16]``."""

    ids: bytearray = attrs.field(factory=bytearray)
    """16 bytes each."""
    offsets: array[int] = attrs.field(factory=_ulongs)
    """Where each record begins in the segment."""
    sizes: array[int] = attrs.field(factory=_ulongs)
    """Sizes of whole records, in bytes."""
    types: bytearray = attrs.field(factory=bytearray)
    """The type byte of each record; 0 in formats without TYPED_RECORDS."""

    def __len__(self) -> int:
        return len(self.offsets)

    def id_list(self) -> list[bytes]:
        """The ids, one by one."""
        return split_ids(self.ids)

    def rows(self) -> Iterator[tuple[bytes, int, int, int]]:
        """(id, offset, size, type byte) of each record."""
        return zip(self.id_list(), self.offsets, self.sizes, self.types, strict=True)

    def add(self, msg_id: bytes, offset: int, size: int, type_byte: int = 0) -> None:
        """Add one record."""
        self.ids += msg_id
        self.offsets.append(offset)
        self.sizes.append(size)
        self.types.append(type_byte)

    def extend(self, ids: list[bytes], offsets: list[int], sizes: list[int], types: bytes | bytearray) -> None:
        """Add records side by side. A scan that adds some thousand at a time holds few Python objects, and is fast."""
        self.ids += b"".join(ids)
        self.offsets.fromlist(offsets)
        self.sizes.fromlist(sizes)
        self.types += types


@attrs.frozen
class Damage:
    """A span of a segment that is not what was written, behind which reading went on."""

    offset: int
    """Where it begins."""
    size: int
    """In bytes."""
    reason: str
    """One word with underscores, such as ``checksum_mismatch``."""


@attrs.frozen
class End:
    """Where reading stopped, and why.

    ``clean``: at the end of the file. ``torn``: at a record that the end of the file cuts off, what a crash inside a write
    leaves. ``corrupt``: at bytes that no writer wrote.
    """

    state: EndState
    """``clean``, ``torn`` or ``corrupt``."""
    offset: int
    """Where reading stopped."""
    reason: str | None = None
    """Why, if it is corrupt: one word with underscores."""


@attrs.define
class SegmentScan:
    """Everything that stands in one segment."""

    header: HeaderState | None = None
    """None if the format has no header."""
    records: Columns = attrs.field(factory=Columns)
    """Whole, undamaged records, by offset; of several copies of an id the first."""
    duplicates: Columns = attrs.field(factory=Columns)
    """The later copies: what a compaction that did not finish leaves."""
    hole_offsets: array[int] = attrs.field(factory=_ulongs)
    """Where each hole begins."""
    hole_sizes: array[int] = attrs.field(factory=_ulongs)
    """Of each hole, in bytes."""
    damage: list[Damage] = attrs.field(factory=list)
    """Spans behind which the scan went on."""
    end: End = End("clean", 0)
    """Where it stopped."""
    trailer: int = 0
    """How many of the last hole's bytes are the trailer that the file ends in; 0 if it ends in none. Only of formats with
    TRAILER. One that has been written behind since is a hole like any other."""

    def separate_copies(self) -> None:
        """Move every later copy of an id from ``records`` to ``duplicates``. Called once, when all records are in."""
        everything = self.records
        if len(set(everything.id_list())) == len(everything):
            return
        self.records = Columns()
        seen: set[bytes] = set()
        for row in everything.rows():
            (self.duplicates if row[0] in seen else self.records).add(*row)
            seen.add(row[0])

    def ended(self, state: EndState, offset: int, reason: str | None = None) -> SegmentScan:
        """This scan, with its end."""
        self.end = End(state, offset, reason)
        return self


Write = tuple[int, bytes]
"""(offset in the segment, bytes)."""


@attrs.define  # not frozen: there are some ten thousand in a segment
class GapFill:
    """The writes that put records into a gap, in three steps; between the steps the engine syncs if the store does.

    The records stand one behind the other, in the order that they were given in, from the gap's beginning on; what is left
    over begins behind them: the engine may cut the segment there.
    After a crash inside or after any step, a scan of the segment finds every record outside the gap. ``prepare`` makes
    the gap one that hides what is written inside it, ``inside`` writes there, ``seal`` makes the records appear. A write of
    ``prepare`` or ``seal`` that must not be torn lies within one 512-byte sector.
    """

    prepare: Sequence[Write] = ()
    """Writes that make the gap one that hides what is written inside it."""
    inside: Sequence[Write] = ()
    """Writes inside it."""
    seal: Sequence[Write] = ()
    """Writes that make the records appear."""


class SegmentFormat(Protocol):
    """Bytes of one kind of segment. Methods are pure; they may be called from any thread."""

    header: bytes
    """What a new segment begins with."""
    max_body: int
    """The largest body that a record can hold, in bytes."""

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """All records of a batch as one string, and the size of each in bytes. Called once a flush."""
        ...

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        """The body of one record. ``record`` has exactly the size that the index has for it.

        Raises RecordError if it is not a record of this id, or if its own check fails. Called for each read: nanoseconds
        count.
        """
        ...

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        """Where the body of the record at ``offset`` begins and ends, in offsets of ``data``. The record was scanned."""
        ...

    def scan(self, data: Buffer, *, start: int = 0, check_body: Callable[[bytes], bool] | None = None) -> SegmentScan:
        """Read a whole segment, or what comes from ``start``, the offset of a record, on.

        ``check_body`` is a codec's test of a stored body; a body that fails it is corruption (``invalid_message_body``).
        Never raises for the bytes it is given, takes no more than a small multiple of their size in memory, and time linear
        in the number of records and bytes.
        """
        ...

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        """The first offset at or after ``start`` where records begin that hold to the end of the file, or ``length`` of them.

        For salvage, behind a corrupt spot; and for recovery, to tell a write that was cut off from damage. None if there is
        none, or if ``scan`` already finds its own way.
        """
        ...

    def gap_room(self, offset: int, size: int) -> int:
        """How many bytes of records can be moved into a gap of ``size`` bytes at ``offset``; 0 if none.

        Asked of formats that are SELF_DESCRIBING. Segments of the others are not changed: what is alive is copied.
        """
        ...

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        """The writes for a gap that receives ``records`` (whole, together at most ``gap_room``), or none.

        A gap is everything between two live records: dead records and holes.
        """
        ...


class TrailingFormat(SegmentFormat, Protocol):
    """A format with TRAILER.

    No reader may need a trailer: a segment that is still written has none, nor has one whose writer was killed, or had no room
    left. One that was cut off is a torn end. A segment may go on being written behind its trailer: that is a hole then.
    """

    def trailer(self, data: Buffer) -> bytes:
        """What is written behind ``data``, a whole segment that takes no more records; nothing if it is empty or not clean.

        Called once a segment: when it is sealed, when a rewriting is done with it, and when a compaction has cut it. Before
        a compaction changes anything, the trailer of last time is cut off.
        """
        ...
