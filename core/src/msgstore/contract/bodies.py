"""Body codecs: convert a client's body to the stored body and back.

A complete one::

    class Zlib:
        def __init__(self, options): pass
        def encode(self, msg_id, body):
            return body if isinstance(body, StoredBody) else zlib.compress(body)
        def decode(self, msg_id, stored):
            try: return zlib.decompress(stored)
            except zlib.error as error: raise RecordError("not_compressed", str(error)) from None
        def is_valid(self, msg_id, stored):
            try: zlib.decompress(stored)
            except zlib.error: return False
            return True

A codec with the capability FIELDS, and ``fields=(RecordField("level", "int"),)`` in its descriptor, has one more method::

        def fields(self, stored):
            return (stored[1] >> 6,) if stored[:1] == b"x" and len(stored) > 1 else None
"""

from __future__ import annotations

from typing import Protocol

import attrs

from msgstore.contract.descriptors import Descriptor


@attrs.frozen(kw_only=True)
class BodyCodecDescriptor(Descriptor):
    """``factory(options) -> BodyCodec``. Capabilities: PLAIN, FIELDS.

    Tools show the body itself in the column ``payload``, unless a field has that name.
    """


class StoredBody(bytes):
    """A body in its stored form, for bodies that have no plain form. A codec returns it unchanged from ``encode``."""

    __slots__ = ()


class BodyCodec(Protocol):
    """Methods are called from any thread, several at a time, and keep no state between calls."""

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        """Return the stored body, which ``decode`` reads. Called by ``write``, and by jobs that write stores.

        If it raises, ``write`` refuses the message: MessageTooLarge is passed on, any other exception becomes BodyRefused.
        """

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        """Return the client's body, or a StoredBody if there is no plain form: for bytes that are no body of the codec, and
        that it gives back as they are. Raises RecordError for a damaged body."""

    def is_valid(self, msg_id: bytes, stored: bytes) -> bool:
        """Return True if ``stored`` is a whole body of this codec, which ``decode`` reads. Called by scans, with any bytes.
        The codec decides whether further bytes after a whole body are damage."""


class BodyCodecWithFields(BodyCodec, Protocol):
    """A codec with the capability FIELDS."""

    def fields(self, stored: bytes) -> tuple[object, ...] | None:
        """Return the values in the order of the descriptor, None for each absent one. None if ``stored`` is not of this codec.

        Called by tools that show fields, such as ``messages`` and Spark, with any bytes. Never raises, and takes time and
        memory linear in the number of bytes.
        """
