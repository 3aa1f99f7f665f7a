"""Body codecs: between the bytes that a client reads and writes and the body that a record stores.

A complete one::

    class Zlib:
        def __init__(self, options): pass
        def encode(self, bodies): return [zlib.compress(body) for body in bodies]
        def decode(self, stored): return zlib.decompress(stored)
        def is_valid(self, stored):
            try: zlib.decompress(stored)
            except zlib.error: return False
            return True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from msgstore.contract.descriptors import Descriptor


@attrs.frozen(kw_only=True)
class BodyCodecDescriptor(Descriptor):
    """``factory(options) -> BodyCodec``."""


class StoredBody(bytes):
    """A body as it is stored, because its codec has no plain bytes for it. Written again, it is stored unchanged."""

    __slots__ = ()


class BodyCodec(Protocol):
    def encode(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Stored bodies of a batch. Called once a flush; may return ``bodies`` itself. A StoredBody passes unchanged."""
        ...

    def decode(self, stored: bytes) -> bytes:
        """What a client reads; a StoredBody if the codec has nothing better. Raises RecordError for a damaged body."""
        ...

    def is_valid(self, stored: bytes) -> bool:
        """Whether ``stored`` is something this codec, or the broker that uses it, wrote. For scans."""
        ...
