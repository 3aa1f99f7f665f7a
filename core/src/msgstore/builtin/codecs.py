"""Body codecs of core."""

from __future__ import annotations

from collections.abc import Sequence

from msgstore.contract import NoOptions


class Raw:
    """What is read is what is stored."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def encode(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        return bodies

    def decode(self, stored: bytes) -> bytes:
        return stored

    def is_valid(self, stored: bytes) -> bool:
        return True
