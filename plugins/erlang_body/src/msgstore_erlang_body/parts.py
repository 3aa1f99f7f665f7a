"""Access to parts of an Erlang term by the offsets of their tags. Only the requested parts are built, all others are skipped.

Functions raise UnexpectedTerm for a term of another kind, and the errors in ``NOT_A_TERM`` for bytes that are no term. They
take time linear in the number of bytes skipped.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from msgstore_erlang_body.term import _COMPRESSED, _MAX_WALKED, _VERSION, _check_compressed, _walk

NOT_A_TERM = (LookupError, struct.error, ValueError, OverflowError, zlib.error)
_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
_MAX_BIG = 16
"""Maximum size in bytes of an integer that :func:`number` reads."""


class UnexpectedTerm(ValueError):
    """Raised for a term of another kind than requested."""


def uncompressed(stored: bytes) -> bytes:
    """Return version and term. A compressed term is inflated, up to 1 MiB: brokers do not compress."""
    if stored[0] != _VERSION:
        raise UnexpectedTerm("no term")
    if stored[1] != _COMPRESSED:
        return stored
    if _U32.unpack_from(stored, 2)[0] > _MAX_WALKED:
        raise UnexpectedTerm("too large")
    _check_compressed(stored)
    return stored[:1] + zlib.decompressobj().decompress(stored[6:], _MAX_WALKED)


def elements(data: bytes, at: int, name: str, count: int) -> list[int]:
    """Return the offsets of the elements of a tuple of ``count`` elements, the first of which is the atom ``name``."""
    if data[at] != 104 or data[at + 1] != count or atom(data, at + 2) != name:
        raise UnexpectedTerm(f"no {name} of {count}")
    return tuple_of(data, at, count)


def tuple_of(data: bytes, at: int, count: int) -> list[int]:
    """Return the offsets of the elements of a tuple of ``count`` elements."""
    if data[at] != 104 or data[at + 1] != count:
        raise UnexpectedTerm(f"no tuple of {count}")
    return list(_following(data, at + 2, count))


def items(data: bytes, at: int) -> Iterator[int]:
    """Yield the offsets of the items of a list. Its tail is ignored."""
    if data[at] == 106:
        return iter(())
    if data[at] != 108:
        raise UnexpectedTerm("no list")
    return _following(data, at + 5, _U32.unpack_from(data, at + 1)[0])


def pairs(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield (offset of the key, offset of the value) for each pair of a map."""
    if data[at] != 116:
        raise UnexpectedTerm("no map")
    offsets = _following(data, at + 5, 2 * _U32.unpack_from(data, at + 1)[0])
    return zip(offsets, offsets, strict=True)


def _following(data: bytes, at: int, count: int) -> Iterator[int]:
    """Yield the offsets of ``count`` consecutive terms."""
    for _ in range(count):
        end = _walk(data, at)
        yield at
        at = end


def binary(data: bytes, at: int) -> bytes:
    """Return the bytes of a binary."""
    if data[at] != 109:
        raise UnexpectedTerm("no binary")
    end = at + 5 + _U32.unpack_from(data, at + 1)[0]
    if end > len(data):
        raise UnexpectedTerm("cut off")
    return data[at + 5 : end]


def atom(data: bytes, at: int) -> str:
    """Return the text of an atom."""
    tag = data[at]
    if tag in (100, 118):
        begin, size = at + 3, _U16.unpack_from(data, at + 1)[0]
    elif tag in (115, 119):
        begin, size = at + 2, data[at + 1]
    else:
        raise UnexpectedTerm("no atom")
    return data[begin : begin + size].decode("utf-8" if tag in (118, 119) else "latin-1")


def number(data: bytes, at: int) -> int | float:
    """Return the value of an integer or float."""
    tag = data[at]
    if tag == 97:
        return data[at + 1]
    if tag == 98:
        return int.from_bytes(data[at + 1 : at + 5], signed=True)
    if tag == 110 and data[at + 1] <= _MAX_BIG:
        size = data[at + 1]
        value = int.from_bytes(data[at + 3 : at + 3 + size], "little")
        return -value if data[at + 2] else value
    if tag == 70:
        return float(struct.unpack_from(">d", data, at + 1)[0])
    if tag == 99:
        return float(data[at + 1 : at + 32].split(b"\0")[0])
    raise UnexpectedTerm("no number")
