"""Terms as Erlang writes them, for crafted messages and tables of RabbitMQ, and for the codec ``erlang``."""

from __future__ import annotations

import struct
import zlib
from random import Random
from typing import Any

from rabbitmq_files.terms import Atom

ODD: tuple[Any, ...] = (
    5, -1, 2**70, 2**63, 1.5, b"", b"x" * 300, b"\xff" * 2, Atom("undefined"), Atom("true"), [], [b""], [5], (), (b"a", b"b"),
    {}, {b"x-k": 1},
)  # fmt: skip
"""Terms for tests that put one where another type is expected."""
TERMS = [
    b"\x83m\0\0\0\5hello",
    b"\x83j",
    b"\x83a\x2a",
    b"\x83b\xff\xff\xff\xff",
    b"\x83F" + struct.pack(">d", 1.5),
    b"\x83c" + b"1.50000000000000000000e+00".ljust(31, b"\0"),
    b"\x83n\x09\1" + bytes(range(9)),
    b"\x83o\0\0\1\0\0" + bytes(256),
    b"\x83k\0\3abc",
    b"\x83h\3w\2okd\0\5errors\4true",
    b"\x83l\0\0\0\3a\1a\2h\2a\3a\4j",
    b"\x83i\0\0\0\2m\0\0\0\1xj",
    b"\x83t\0\0\0\2w\1aa\1w\1bl\0\0\0\1jj",
    b"\x83M\0\0\0\2\3\xff\xe0",
    b"\x83M\0\0\0\0\0",
    b"\x83d\0\2ok",
    b"\x83s\2ok",
    b"\x83v\0\2\xc3\xa4",
    b"\x83w\2\xc3\xa4",
    b"\x83Xw\x0dnonode@nohost" + bytes(12),
    b"\x83gw\1n" + bytes(9),
    b"\x83Z\0\3w\1n" + bytes(16),
    b"\x83r\0\2w\1n" + bytes(9),
    b"\x83r\0\5d\0\1n" + bytes(21),
    b"\x83Yw\1n" + bytes(8),
    b"\x83xw\1n" + bytes(12),
    b"\x83fw\1n" + bytes(5),
    b"\x83ew\1n" + bytes(5),
    b"\x83qw\5listsw\7reversea\1",
    b"\x83p\0\0\0\x36\1" + bytes(16) + b"\0\0\0\1\0\0\0\1w\1ma\1b\0\0\0\1gw\1n" + bytes(9) + b"a\7",
    b"\x83u\0\0\0\1gw\1n" + bytes(9) + b"w\1ma\1a\1a\7",
    b"\x83P\0\0\1\4" + zlib.compress(b"m\0\0\0\xff" + bytes(255)),
    b"\x83P\0\0\4\6" + zlib.compress(b"l\0\0\4\0" + b"j" * 1025),
]
"""One of every kind, and some of many."""


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
