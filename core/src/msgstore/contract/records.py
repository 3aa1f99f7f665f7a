"""Record types: what a message looks like inside a segment of a format that has the capability TYPED_RECORDS.

A record type owns the bytes of its records. In ``v2`` each begins ``type 1, size 4, id 16`` (big-endian, size = the whole
record); what stands behind the id is the record type's own. A complete one that keeps a timestamp beside the body::

    class Stamped:
        overhead = 29

        def __init__(self, context):
            self._byte = context.byte

        def encode(self, ids, bodies):
            sizes = [29 + len(body) for body in bodies]
            now = time.time_ns()
            heads = (struct.pack(">BI16sQ", self._byte, size, id, now) for size, id in zip(sizes, ids))
            return b"".join(chain.from_iterable(zip(heads, bodies))), sizes

        def decode(self, record):
            return record[29:]

        def check(self, data, offset, size):
            return None

        def body_span(self, offset, size):
            return offset + 29, offset + size
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from msgstore.contract.buffers import Buffer
from msgstore.contract.descriptors import Descriptor


@attrs.frozen(kw_only=True)
class RecordTypeDescriptor(Descriptor):
    """``factory(RecordContext) -> RecordType``."""

    format: str
    """The name of the segment format whose records it writes."""
    assigned_byte: int | None = None
    """The type byte that the format's own specification assigns to it. Without one, a configuration must bind 128-255."""


@attrs.frozen
class RecordContext:
    """What a record type's factory is called with."""

    options: Any
    byte: int
    """The type byte that this store's configuration binds the record type to."""


class RecordType(Protocol):
    """Bytes of one kind of record. Called under the store's lock or from a scan; must keep no state between calls."""

    overhead: int
    """Bytes that a record has beside its body; a record of a smaller size is corrupt."""

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """All records of a batch as one string, and the size of each in bytes. Called once a flush."""
        ...

    def decode(self, record: bytes) -> bytes:
        """The body of one whole record whose type, size and id the format has checked.

        Raises RecordError when the record's own check fails. Called for each read.
        """
        ...

    def check(self, data: Buffer, offset: int, size: int) -> str | None:
        """Why the whole record at ``offset`` of ``data`` is damaged (such as ``"checksum_mismatch"``), or None.

        Called for each record of a scan. A damaged record is reported and the scan goes on behind it.
        """
        ...

    def body_span(self, offset: int, size: int) -> tuple[int, int]:
        """Where the body of the record at ``offset`` begins and ends, in offsets of the same buffer."""
        ...


@attrs.frozen
class BoundRecord:
    """A record type as a store uses it."""

    name: str
    byte: int
    record: RecordType
