"""Body codecs: between the bytes that a client reads and writes and the body that a record stores.

A complete one::

    class Zlib:
        def __init__(self, options): pass
        def encode(self, bodies):
            return [body if isinstance(body, StoredBody) else zlib.compress(body) for body in bodies]
        def decode(self, stored):
            try: return zlib.decompress(stored)
            except zlib.error as error: raise RecordError("not_compressed", str(error)) from None
        def is_valid(self, stored):
            try: zlib.decompress(stored)
            except zlib.error: return False
            return True

A codec whose bodies hold more than a client reads says so in its descriptor, ``fields=(RecordField("level", "int"),)``, and
then has a method for tools::

        def fields(self, stored):
            return (stored[1] >> 6,) if stored[:1] == b"x" else None

A codec that does not take every body says so with an attribute, ``max_body``, and is then never asked to encode a larger one: a
store refuses it when it is written. It is too late at the flush, where nobody is left to be told but whoever asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from msgstore.contract.descriptors import Descriptor
from msgstore.contract.records import RecordField, as_fields, check_fields


@attrs.frozen(kw_only=True)
class BodyCodecDescriptor(Descriptor):
    """``factory(options) -> BodyCodec``."""

    fields: tuple[RecordField, ...] = attrs.field(default=(), converter=as_fields, validator=check_fields)
    """What it finds in a stored body. A codec whose descriptor names any is a BodyCodecWithFields. Tools call what a client
    reads ``payload``, unless a field has that name. Since contract 2.2."""


class StoredBody(bytes):
    """A body as it is stored, because its codec has no plain bytes for it. Written again, it is stored unchanged."""

    __slots__ = ()


class BodyCodec(Protocol):
    def encode(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Stored bodies of a batch. Called once a flush; may return ``bodies`` itself. A StoredBody passes unchanged.

        A body for which it raises is dropped, and the flush raises BodyRefused. OSError and MemoryError say nothing about a
        body: the flush fails, and is tried again.
        """
        ...

    def decode(self, stored: bytes) -> bytes:
        """What a client reads; a StoredBody if the codec has nothing better. Raises RecordError for a damaged body."""
        ...

    def is_valid(self, stored: bytes) -> bool:
        """Whether ``stored`` is something this codec, or the broker that uses it, wrote. For scans."""
        ...


class BodyCodecWithLimit(BodyCodec, Protocol):
    """A codec that does not take every body. Since contract 2.2: in a codec that was written against an older one, an attribute
    of this name means nothing."""

    max_body: int
    """Bytes of the largest body that ``encode`` takes; ``write`` refuses a larger one. A StoredBody may be of any size. Never
    changes."""


class BodyCodecWithFields(BodyCodec, Protocol):
    """A codec whose descriptor names fields. Since contract 2.2."""

    def fields(self, stored: bytes) -> tuple[object, ...] | None:
        """The values of a stored body, in the order of the descriptor, None for each that it has not; None for all if it is not
        what this codec, or the broker that uses it, wrote.

        Called by tools, never on the way of reads and writes, with any bytes: never raises for them, and takes time and memory
        linear in their number.
        """
        ...
