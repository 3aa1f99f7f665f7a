"""The body codec ``erlang``: a body is the binary that ``erlang:term_to_binary/1`` makes of it."""

from __future__ import annotations

import struct

from msgstore.contract import MessageTooLarge, NoOptions, StoredBody
from msgstore_erlang_body.message import Message, read_message
from msgstore_erlang_body.term import is_term

_HEAD = struct.Struct(">2sI")
"""What a stored binary begins with: version and tag, and the number of the bytes that follow."""
_BINARY = b"\x83m"
"""Version 131, BINARY_EXT."""


class ErlangBody:
    """A :class:`msgstore.contract.BodyCodec`. Adds six bytes to each body."""

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
        """Exchange, routing key, properties as JSON, and payload of a broker's message; of a binary term the payload alone."""
        return read_message(stored)
