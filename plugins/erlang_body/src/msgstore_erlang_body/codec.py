"""Body codec ``erlang``: the stored body is the binary term that ``erlang:term_to_binary/1`` makes of the client's body."""

from __future__ import annotations

import struct

from msgstore.contract import MessageTooLarge, NoOptions, StoredBody
from msgstore_erlang_body.message import Message, read_message
from msgstore_erlang_body.term import is_term

_HEAD = struct.Struct(">2sI")
"""First bytes of a stored binary: version and tag, and the number of bytes that follow."""
_BINARY = b"\x83m"
"""Version 131, BINARY_EXT."""


class ErlangBody:
    """Implementation of :class:`msgstore.contract.BodyCodecWithFields`. Adds six bytes to each body."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        """Return the body as a binary term; a StoredBody is a term already. Raises MessageTooLarge from 4 GiB on."""
        if isinstance(body, StoredBody):
            return body
        if len(body) >= 2**32:
            raise MessageTooLarge(
                f"a body of {len(body)} bytes: an Erlang binary term holds at most {2**32 - 1}; split the message"
            )
        return _BINARY + len(body).to_bytes(4) + body

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        """Return the bytes of a binary term, without what follows it; any other body as a StoredBody."""
        if len(stored) >= 6:
            tag, size = _HEAD.unpack_from(stored)
            if tag == _BINARY and size <= len(stored) - 6:
                return stored[6 : 6 + size]
        return StoredBody(stored)

    def is_valid(self, msg_id: bytes, stored: bytes) -> bool:
        """Return True if ``stored`` begins with one whole term. Trailing bytes are accepted, as upstream accepts them."""
        return is_term(stored)

    def fields(self, stored: bytes) -> Message | None:
        """Return exchange, routing key, properties as JSON, and payload. A binary term has only a payload."""
        return read_message(stored)
