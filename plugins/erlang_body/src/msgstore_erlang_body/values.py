"""Values of an Erlang term: what a message is made of, as Python objects; everything else as ``OPAQUE``."""

from __future__ import annotations

import struct
import zlib

from msgstore_erlang_body.term import uncompressed, walk

NOT_A_TERM = (LookupError, struct.error, ValueError, OverflowError, zlib.error)
OPAQUE = object()
"""Value of pids, references, funs, strings, huge integers, and of everything that is nested deeper than ``_MAX_DEPTH``."""
_MAX_DEPTH = 70
"""Enough for tables in tables, 32 deep, in the properties of a message."""
_MAX_BIG = 16
"""Maximum size in bytes of an integer that is read."""


class Atom(str):
    """Text of an atom. Texts are binaries, and so ``bytes``."""

    __slots__ = ()


class UnexpectedTerm(ValueError):
    """Raised for a term of another kind than requested."""


def read_value(stored: bytes) -> object:
    """Return the value of the term that ``stored`` begins with. Raises one of ``NOT_A_TERM``. Takes linear time.

    A compressed term is inflated, up to 1 MiB: brokers do not compress.
    """
    return _read(uncompressed(stored), 1, 0)[0]


def _read(data: bytes, at: int, depth: int) -> tuple[object, int]:
    """Return a value, and the end of its term."""
    tag, end = data[at], walk(data, at) if depth in (0, _MAX_DEPTH) else -1  # a whole term is checked once
    if depth == _MAX_DEPTH:
        return OPAQUE, end
    if tag == 109:
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        return data[at + 5 : end], end
    if tag in (100, 115, 118, 119):
        begin = at + (3 if tag in (100, 118) else 2)
        end = begin + int.from_bytes(data[at + 1 : begin])
        return Atom(data[begin:end].decode("utf-8" if tag in (118, 119) else "latin-1")), end
    if tag == 97:
        return data[at + 1], at + 2
    if tag == 98:
        return int.from_bytes(data[at + 1 : at + 5], signed=True), at + 5
    if tag == 110 and data[at + 1] <= _MAX_BIG:
        end = at + 3 + data[at + 1]
        value = int.from_bytes(data[at + 3 : end], "little")
        return -value if data[at + 2] else value, end
    if tag == 70:
        return struct.unpack_from(">d", data, at + 1)[0], at + 9
    if tag == 99:
        return float(data[at + 1 : at + 32].split(b"\0")[0].replace(b",", b".")), at + 32
    if tag == 104:
        items, end = _read_many(data, at + 2, data[at + 1], depth)
        return tuple(items), end
    if tag in (106, 108):
        count = int.from_bytes(data[at + 1 : at + 5]) if tag == 108 else -1
        items, end = _read_many(data, at + 5, count + 1, depth) if tag == 108 else ([], at + 1)
        return items[:count] if tag == 108 else items, end  # without its tail
    if tag == 116:
        items, end = _read_many(data, at + 5, 2 * int.from_bytes(data[at + 1 : at + 5]), depth)
        pairs = zip(items[::2], items[1::2], strict=True)
        return {key: value for key, value in pairs if isinstance(key, Atom)}, end  # binary keys are headers
    return OPAQUE, walk(data, at)


def _read_many(data: bytes, at: int, count: int, depth: int) -> tuple[list[object], int]:
    items = []
    for _ in range(count):
        value, at = _read(data, at, depth + 1)
        items.append(value)
    return items, at
