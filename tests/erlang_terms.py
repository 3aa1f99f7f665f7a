"""Terms as Erlang writes them, for crafted messages and tables of RabbitMQ."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from rabbitmq_files.terms import Atom

ODD: tuple[Any, ...] = (
    5, -1, 2**70, 2**63, 1.5, b"", b"x" * 300, b"\xff" * 2, Atom("undefined"), Atom("true"), [], [b""], [5], (), (b"a", b"b"),
    {}, {b"x-k": 1},
)  # fmt: skip
"""Terms for tests that put one where another type is expected."""


def to_term(value: Any, random: Random | None = None) -> bytes:
    """Encode a term, with the byte 131."""
    return b"\x83" + encode(value, random)


def encode(value: Any, random: Random | None = None) -> bytes:
    """Encode a term. With ``random``, one of ODD is here and there instead of a member."""
    if random is not None and random.random() < 0.02:
        value = random.choice(ODD)
    match value:
        case Atom():
            return b"w" + bytes([len(value.encode())]) + value.encode()
        case bytes():
            return b"m" + len(value).to_bytes(4) + value
        case float():
            return b"F" + struct.pack(">d", value)
        case int() if 0 <= value < 256:
            return b"a" + bytes([value])
        case int() if -(2**31) <= value < 2**31:
            return b"b" + struct.pack(">i", value)
        case int():
            size = (value.bit_length() + 7) // 8
            return b"n" + bytes([size, value < 0]) + abs(value).to_bytes(size, "little")
        case tuple():
            return b"h" + bytes([len(value)]) + b"".join(encode(one, random) for one in value)
        case list():
            return b"l" + len(value).to_bytes(4) + b"".join(encode(one, random) for one in value) + b"j" if value else b"j"
    pairs = [encode(key, random) + encode(one, random) for key, one in value.items()]
    return b"t" + len(pairs).to_bytes(4) + b"".join(pairs)
