"""Parts of an Erlang term, by the offset of their tag. Only what is asked for is built; everything else is walked over.

All raise what :mod:`msgstore_erlang_body.term` raises for bytes that are no term (``NOT_A_TERM``), and NotThere for a term of
another kind. Linear in the bytes that are passed over.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from msgstore_erlang_body.term import _COMPRESSED, _MAX_WALKED, _VERSION, _check_compressed, _walk

NOT_A_TERM = (LookupError, struct.error, ValueError, OverflowError, zlib.error)
_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
_MAX_BIG = 16
"""Bytes of an integer that anything of ours may be."""


class NotThere(ValueError):
    """The term is of another kind."""


def uncompressed(stored: bytes) -> bytes:
    """Version and term. Of a compressed one what it stands for, up to 1 MiB: a broker never compresses."""
    if stored[0] != _VERSION:
        raise NotThere("no term")
    if stored[1] != _COMPRESSED:
        return stored
    if _U32.unpack_from(stored, 2)[0] > _MAX_WALKED:
        raise NotThere("too large")
    _check_compressed(stored)
    return stored[:1] + zlib.decompressobj().decompress(stored[6:], _MAX_WALKED)


def elements(data: bytes, at: int, name: str, count: int) -> list[int]:
    """Of a tuple of ``count``, the atom ``name`` being the first of them."""
    if data[at] != 104 or data[at + 1] != count or atom(data, at + 2) != name:
        raise NotThere(f"no {name} of {count}")
    return tuple_of(data, at, count)


def tuple_of(data: bytes, at: int, count: int) -> list[int]:
    if data[at] != 104 or data[at + 1] != count:
        raise NotThere(f"no tuple of {count}")
    return list(_following(data, at + 2, count))


def items(data: bytes, at: int) -> Iterator[int]:
    """Of a list; what stands behind its last item is ignored."""
    if data[at] == 106:
        return iter(())
    if data[at] != 108:
        raise NotThere("no list")
    return _following(data, at + 5, _U32.unpack_from(data, at + 1)[0])


def pairs(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Of a map: keys with values."""
    if data[at] != 116:
        raise NotThere("no map")
    places = _following(data, at + 5, 2 * _U32.unpack_from(data, at + 1)[0])
    return zip(places, places, strict=True)


def _following(data: bytes, at: int, count: int) -> Iterator[int]:
    for _ in range(count):
        end = _walk(data, at)
        yield at
        at = end


def binary(data: bytes, at: int) -> bytes:
    if data[at] != 109:
        raise NotThere("no binary")
    end = at + 5 + _U32.unpack_from(data, at + 1)[0]
    if end > len(data):
        raise NotThere("cut off")
    return data[at + 5 : end]


def atom(data: bytes, at: int) -> str:
    tag = data[at]
    if tag in (100, 118):
        begin, size = at + 3, _U16.unpack_from(data, at + 1)[0]
    elif tag in (115, 119):
        begin, size = at + 2, data[at + 1]
    else:
        raise NotThere("no atom")
    return data[begin : begin + size].decode("utf-8" if tag in (118, 119) else "latin-1")


def number(data: bytes, at: int) -> int | float:
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
    raise NotThere("no number")
