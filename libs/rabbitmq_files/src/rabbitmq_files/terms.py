"""Erlang's external term format: decode a term of any size that is claimed, in time and memory linear in the bytes there are.

=====================  ===========================================================
Erlang                 Python
=====================  ===========================================================
atom                   :class:`Atom`, also ``true``, ``false`` and ``undefined``
binary                 bytes
integer, float         int, float
tuple, list, map       tuple, list (a string is a list of integers), dict
pid, port, reference   :class:`Opaque`: the bytes of the term
function, bit string   :class:`Opaque`
=====================  ===========================================================

A term says itself where it ends, so no size beside it is needed. Source: "External Term Format" in Erlang's manual.
"""

from __future__ import annotations

import math
import struct
import zlib
from functools import lru_cache
from mmap import mmap
from struct import Struct
from typing import Any, TypeAlias

VERSION = 131
COMPRESSED = 80
MAX_DEPTH = 200
"""Levels of nesting. Headers of messages have some tens at most."""
MAX_ATOM = 255
"""Characters of an atom, in Erlang."""
MAX_INFLATED = 2**20
"""Bytes of a compressed term when it is inflated: a thousand times as many as are stored. Brokers do not compress."""
_PIECE = 4096
"""Compressed bytes that are inflated at a time."""

_u16, _u32, _i32 = Struct(">H").unpack_from, Struct(">I").unpack_from, Struct(">i").unpack_from
_f64 = Struct(">d").unpack_from


Buffer: TypeAlias = bytes | mmap
"""Content of a file. A slice of it is bytes."""


class TermError(ValueError):
    """The bytes are no term, or one that is refused."""


class Atom(str):
    """An atom. Equal to the same text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


class Opaque(bytes):
    """Bytes of a term which has no form in Python: a pid, a port, a reference, a function, a bit string."""

    __slots__ = ()


_COMMON_ATOMS = (
    "basic_message resource exchange queue content none rabbit_framing_amqp_0_9_1 true false undefined P_basic "
    "longstr signedint decimal timestamp table array byte double float long short bool binary unsignedbyte "
    "unsignedshort unsignedint void mc mc_amqpl mc_amqp mc_mqtt id rk rts ts x d p ttl bcc deaths v1"
)
_KNOWN = {name.encode(): Atom(name) for name in _COMMON_ATOMS.split()}
"""Atoms of messages, each as one object."""

_AFTER_NODE = {89: 8, 88: 12, 120: 12, 101: 5, 102: 5, 103: 9}
"""Tag of ports, pids and old references to the number of bytes that follow the node's name."""


def decode(data: Buffer, offset: int = 0) -> tuple[Any, int]:
    """Decode the term that begins at ``offset`` with the byte 131. Return it, and the offset after it. Raises TermError."""
    try:
        if data[offset] != VERSION:
            raise TermError(f"byte {data[offset]} where a term begins, not {VERSION}")
        if data[offset + 1] != COMPRESSED:
            (value,), end = _decode(data, offset + 1, 1, 0)
            return value, end
        inflated, end = _inflate(data, offset + 2)
        (value,), stop = _decode(inflated, 0, 1, 0)
    except (IndexError, struct.error):
        raise TermError("the term is cut") from None
    if stop != len(inflated):
        raise TermError(f"{len(inflated) - stop} bytes after a compressed term")
    return value, end


def decode_inner(data: Buffer, offset: int) -> tuple[Any, int]:
    """Decode a term that is part of another one, without the byte 131. Raises TermError."""
    try:
        (value,), end = _decode(data, offset, 1, 0)
    except (IndexError, struct.error):
        raise TermError("the term is cut") from None
    return value, end


def _inflate(data: Buffer, at: int) -> tuple[bytes, int]:
    """Return the inflated bytes, whose size is at ``at``, and the offset after the compressed ones."""
    (size,) = _u32(data, at)
    if size > MAX_INFLATED:
        raise TermError(f"a compressed term of {size} bytes; at most {MAX_INFLATED} are inflated")
    stream, inflated, at = zlib.decompressobj(), bytearray(), at + 4
    try:
        while not stream.eof and len(inflated) <= size and (piece := data[at : at + _PIECE]):
            inflated += stream.decompress(piece, size + 1 - len(inflated))
            at += len(piece) - len(stream.unconsumed_tail) - len(stream.unused_data)
    except zlib.error as error:
        raise TermError(f"a compressed term cannot be inflated: {error}") from None
    if len(inflated) != size or not stream.eof:
        raise TermError(f"a compressed term has not the {size} bytes that it claims")
    return bytes(inflated), at


def _decode(data: Buffer, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    """Decode ``count`` terms, one after the other. Raises TermError, IndexError, struct.error."""
    if depth > MAX_DEPTH:
        raise TermError(f"more than {MAX_DEPTH} levels of nesting")
    found: list[Any] = []
    append, stop = found.append, len(data)
    value: Any
    for _ in range(count):
        tag = data[at]
        if tag == 109:  # BINARY
            begin = at + 5
            at = begin + _u32(data, at + 1)[0]
            value = data[begin:at]
        elif tag == 100:  # ATOM
            begin = at + 3
            at = begin + _u16(data, at + 1)[0]
            raw = data[begin:at]
            value = _KNOWN.get(raw) or _atom(raw, "latin-1")
        elif tag == 119:  # SMALL_ATOM_UTF8
            begin = at + 2
            at = begin + data[at + 1]
            raw = data[begin:at]
            value = _KNOWN.get(raw) or _atom(raw, "utf-8")
        elif tag == 104:  # SMALL_TUPLE
            inner, at = _decode(data, at + 2, data[at + 1], depth + 1)
            value = tuple(inner)
        elif tag == 108:  # LIST
            value, at = _decode(data, at + 5, _u32(data, at + 1)[0], depth + 1)
            if data[at] != 106:
                raise TermError("an improper list")
            at += 1
        elif tag == 106:  # NIL
            value = []
            at += 1
        elif tag == 97:  # SMALL_INTEGER
            value = data[at + 1]
            at += 2
        elif tag == 98:  # INTEGER
            (value,) = _i32(data, at + 1)
            at += 5
        else:
            value, at = _decode_rare(data, at, depth)
        if at > stop:
            raise IndexError
        append(value)
    return found, at


def _decode_rare(data: Buffer, at: int, depth: int) -> tuple[Any, int]:
    """Decode one term. The offset after it may be after the data."""
    tag = data[at]
    if tag == 116:  # MAP
        return _map(data, at, depth)
    if tag == 110:  # SMALL_BIG
        size = data[at + 1]
        value = int.from_bytes(data[at + 3 : at + 3 + size], "little")
        return -value if data[at + 2] else value, at + 3 + size
    if tag == 111:  # LARGE_BIG: more digits than Python writes
        raise TermError(f"an integer of {_u32(data, at + 1)[0]} bytes; at most 255 are decoded")
    if tag == 107:  # STRING
        end = at + 3 + _u16(data, at + 1)[0]
        return list(data[at + 3 : end]), end
    if tag == 70 or tag == 99:  # NEW_FLOAT, and FLOAT, as text
        try:
            number: float = _f64(data, at + 1)[0] if tag == 70 else float(data[at + 1 : at + 32].rstrip(b"\0"))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise TermError("a float that is no number")
        return number, at + (9 if tag == 70 else 32)
    if tag == 105:  # LARGE_TUPLE
        found, end = _decode(data, at + 5, _u32(data, at + 1)[0], depth + 1)
        return tuple(found), end
    if tag == 115 or tag == 118:  # SMALL_ATOM, ATOM_UTF8
        begin, size = (at + 2, data[at + 1]) if tag == 115 else (at + 3, _u16(data, at + 1)[0])
        return _atom(data[begin : begin + size], "latin-1" if tag == 115 else "utf-8"), begin + size
    end = _end_of_opaque(data, at)
    return Opaque(data[at:end]), end


def _map(data: Buffer, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    (count,) = _u32(data, at + 1)
    found, at = _decode(data, at + 5, 2 * count, depth + 1)
    if not all(map(_is_key, found[::2])):
        raise TermError("a key of a map that no broker writes")
    members = dict(zip(found[::2], found[1::2], strict=True))
    if len(members) != count:
        raise TermError("a map with the same key twice")
    return members, at


def _is_key(value: Any) -> bool:
    """Return True for keys that brokers write. Others are refused: they can be crafted to have one hash, which takes quadratic
    time."""
    if type(value) is tuple:
        return all(type(one) is bytes or type(one) is Atom for one in value)
    return type(value) is bytes or type(value) is Atom or (type(value) is int and -(2**31) <= value < 2**31)


def _end_of_opaque(data: Buffer, at: int) -> int:
    """Return the end of a term that is kept as bytes."""
    tag = data[at]
    if tag in _AFTER_NODE:
        return _end_of_atom(data, at + 1) + _AFTER_NODE[tag]
    if tag in (90, 114):  # NEWER_REFERENCE, NEW_REFERENCE: number of words, node, creation, words
        words: int = _u16(data, at + 1)[0]
        return _end_of_atom(data, at + 3) + (4 if tag == 90 else 1) + 4 * words
    size: int
    if tag == 112:  # NEW_FUN: its size includes the four bytes of the size
        (size,) = _u32(data, at + 1)
        return at + 1 + max(size, 4)
    if tag == 77:  # BIT_BINARY
        (size,) = _u32(data, at + 1)
        return at + 6 + size
    if tag == 113:  # EXPORT: module, function, arity
        return _end_of_atom(data, _end_of_atom(data, at + 1)) + 2
    raise TermError(f"tag {tag}, which no term has")


def _end_of_atom(data: Buffer, at: int) -> int:
    if data[at] not in (100, 115, 118, 119):
        raise TermError(f"tag {data[at]} where an atom must be")
    return _decode(data, at, 1, 0)[1]


@lru_cache(1024)
def _atom(raw: bytes, encoding: str) -> Atom:
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        raise TermError("an atom that is no text") from None
    if len(text) > MAX_ATOM:
        raise TermError(f"an atom of {len(text)} characters; at most {MAX_ATOM} are possible")
    return Atom(text)
