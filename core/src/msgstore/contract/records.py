"""Record types: the byte layout of records in a segment format with the capability TYPED_RECORDS.

In ``v2`` each record begins with type (1 byte), size (4 bytes, of the whole record) and id (16 bytes), all big-endian. The
bytes after the id belong to the record type. A complete one that stores a timestamp::

    class Stamped:
        overhead = 29

        def __init__(self, context):
            self._byte = context.byte

        def encode(self, ids, bodies):
            sizes = [29 + len(body) for body in bodies]
            now = time.time_ns()
            heads = (struct.pack(">BI16sq", self._byte, size, id, now) for size, id in zip(sizes, ids))
            return b"".join(chain.from_iterable(zip(heads, bodies))), sizes

        def decode(self, record):
            return record[29:]

        def check(self, data, offset, size):
            return None

        def body_span(self, offset, size):
            return offset + 29, offset + size

With the capability FIELDS, and ``fields=(RecordField("time", "time"),)`` in its descriptor, it has one more method::

        def fields(self, record):
            return struct.unpack_from(">q", record, 21)
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from msgstore.contract.descriptors import Descriptor, RecordField

Buffer: TypeAlias = bytes | mmap.mmap
"""A whole segment, from its byte 0 on. Indexing returns an int, slicing returns bytes; ``re`` and ``struct`` take it. Of the
methods of bytes it has ``find`` and ``rfind``. A large one may have ``stored_parts(start)``, which yields (begin, end) of what
is no hole of a sparse file: the rest is zeros. A record may reach over several parts."""


@attrs.frozen(kw_only=True)
class RecordTypeDescriptor(Descriptor):
    """``factory(RecordContext) -> RecordType``. Capabilities: FRAMED, FIELDS.

    Options are for writing: a reader with the default options must accept every record, because tools read without a
    configuration. So each option has a default, and ``check`` needs none. What ``decode`` checks with an option passes without
    it. No option is named ``byte``.
    """

    format: str
    """Name of the segment format whose records it writes."""
    assigned_byte: int | None = None
    """Type byte that the specification of the format assigns. A configuration may bind a byte from 128 to 255 all the same, and
    has to if none is assigned: records have the byte of the context."""


@attrs.frozen
class RecordContext:
    """Argument of a record type's factory: an instance of the descriptor's ``options``, and the type byte in this store."""

    options: Any
    byte: int


class RecordType(Protocol):
    """Methods are called from any thread, several at a time, and keep no state between calls, such as a counter."""

    overhead: int
    """Size of a record without its body, the same for all bodies and options. A record has the body unchanged, in one piece."""

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """Return all records of a batch as one string, and the size of each in bytes. A large body is a batch of its own.
        Ids of a batch may be equal. Does not raise: an option that cannot be written is refused by its class."""

    def decode(self, record: bytes) -> bytes:
        """Return the stored body of a whole record, from its type byte on. The format has checked type, size and id.

        Called for each read. Raises RecordError if the record's own check fails.
        """

    def check(self, data: Buffer, offset: int, size: int) -> str | None:
        """Return why the whole record at ``offset`` is damaged, such as ``"checksum_mismatch"``, or None. Reports the
        records that ``decode`` refuses with the default options, and no others.

        Called for each record of a scan, with a size of at least ``overhead``. The scan reports the damage and continues. None
        means only that no damage was found.
        """

    def body_span(self, offset: int, size: int) -> tuple[int, int]:
        """Return begin and end of the body of the record at ``offset``, as offsets of the same buffer."""


class RecordFields(Protocol):
    """The additional method of a record type or segment format with the capability FIELDS."""

    def fields(self, record: bytes) -> tuple[object, ...]:
        """Return the values of a whole record in the order of the descriptor, None for each absent one. 0 is a value.

        Called by tools only, for records that a scan found intact. Raises RecordError, and nothing else, if such a record has
        no readable values.
        """


@attrs.frozen
class BoundRecord:
    """A record type, with the type byte that one store binds it to and the fields of its descriptor."""

    name: str
    byte: int
    record: RecordType
    fields: tuple[RecordField, ...] = ()
