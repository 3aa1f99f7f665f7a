"""Built-in body codecs."""

from __future__ import annotations

from msgstore.contract import NoOptions


class Raw:
    """Body codec that stores bodies unchanged."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def encode(self, msg_id: bytes, body: bytes) -> bytes:
        return body

    def decode(self, msg_id: bytes, stored: bytes) -> bytes:
        return stored

    def is_valid(self, msg_id: bytes, stored: bytes) -> bool:
        return True
