"""The body codec ``erlang``: a body is the binary that ``erlang:term_to_binary/1`` makes of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgstore.contract import MessageTooLarge, NoOptions, StoredBody
from msgstore_erlang_body.message import Message, read_message
from msgstore_erlang_body.term import is_term

_HEAD = struct.Struct(">2sI")
"""What a stored binary begins with: version and tag, and the number of the bytes that follow."""
_BINARY = b"\x83m"
"""Version 131, BINARY_EXT."""


class ErlangBody:
    """An :class:`msgstore.contract.BodyCodec`. Six bytes a body; keeps no state."""

    max_body = 2**32 - 1

    def __init__(self, options: NoOptions) -> None:
        pass

    def encode(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Each body as a binary term; a StoredBody is a term already. Raises MessageTooLarge from 4 GiB on."""
        try:
            return [body if isinstance(body, StoredBody) else _BINARY + len(body).to_bytes(4) + body for body in bodies]
        except OverflowError:
            raise MessageTooLarge(
                f"a body of {max(map(len, bodies))} bytes: an Erlang binary term holds at most {2**32 - 1}; split the message"
            ) from None

    def decode(self, stored: bytes) -> bytes:
        """The bytes of a binary term, without what follows it; anything else, damaged or not, as a StoredBody."""
        if len(stored) >= 6:
            tag, size = _HEAD.unpack_from(stored)
            if tag == _BINARY and size <= len(stored) - 6:
                return stored[6 : 6 + size]
        return StoredBody(stored)

    def is_valid(self, stored: bytes) -> bool:
        """Whether ``stored`` begins with one whole term; trailing bytes are accepted, as upstream accepts them."""
        return is_term(stored)

    def fields(self, stored: bytes) -> Message | None:
        """Exchange, routing key, properties as JSON, and payload of a broker's message; of a binary term the payload alone."""
        return read_message(stored)
