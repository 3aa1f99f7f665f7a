"""Erlang terms in the external term format; also for the tests of the codec ``erlang``."""

from __future__ import annotations

import struct
import zlib

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
