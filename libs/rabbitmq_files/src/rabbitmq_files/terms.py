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

import struct
import zlib
from collections.abc import Hashable
from mmap import mmap
from struct import Struct
from typing import Any, TypeAlias

VERSION = 131
COMPRESSED = 80
MAX_DEPTH = 200
"""Levels of nesting. Headers of messages have some tens at most."""
MAX_MAP = 8192
"""Members of a map: crafted integer keys have equal hashes, which takes quadratic time."""
MAX_INFLATED = 128 * 2**20
"""Bytes of a compressed term when it is inflated. Brokers do not compress."""

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
        if data[offset + 1] == COMPRESSED:
            inflated, end = _inflate(data, offset + 2)
            value, stop = decode_inner(inflated, 0)
            if stop != len(inflated):
                raise TermError(f"{len(inflated) - stop} bytes after a compressed term")
            return value, end
        return _decode(data, offset + 1, 0)
    except (IndexError, struct.error):
        raise TermError("the term is cut") from None


def decode_inner(data: Buffer, offset: int) -> tuple[Any, int]:
    """Decode a term that is part of another one, without the byte 131. Raises TermError."""
    try:
        return _decode(data, offset, 0)
    except (IndexError, struct.error):
        raise TermError("the term is cut") from None


def _inflate(data: Buffer, at: int) -> tuple[bytes, int]:
    """Return the inflated bytes, whose size is at ``at``, and the offset after the compressed ones."""
    (size,) = _u32(data, at)
    if size > MAX_INFLATED:
        raise TermError(f"a compressed term of {size} bytes; at most {MAX_INFLATED} are inflated")
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data[at + 4 :], size + 1)
    except zlib.error as error:
        raise TermError(f"a compressed term cannot be inflated: {error}") from None
    if len(inflated) != size or not stream.eof:
        raise TermError(f"a compressed term has not the {size} bytes that it claims")
    return inflated, len(data) - len(stream.unused_data)


def _decode(data: Buffer, at: int, depth: int) -> tuple[Any, int]:
    """Decode at ``at``. Raises TermError, IndexError, struct.error."""
    tag = data[at]
    if tag == 109:  # BINARY
        (size,) = _u32(data, at + 1)
        return _bytes(data, at + 5, size), at + 5 + size
    if tag == 100 or tag == 118:  # ATOM, ATOM_UTF8
        (size,) = _u16(data, at + 1)
        return _atom(_bytes(data, at + 3, size), tag == 118), at + 3 + size
    if tag == 119 or tag == 115:  # SMALL_ATOM_UTF8, SMALL_ATOM
        size = data[at + 1]
        return _atom(_bytes(data, at + 2, size), tag == 119), at + 2 + size
    if tag == 97:
        return data[at + 1], at + 2
    if tag == 98:
        return _i32(data, at + 1)[0], at + 5
    if tag == 106:
        return [], at + 1
    if tag == 104 or tag == 105 or tag == 108:  # SMALL_TUPLE, LARGE_TUPLE, LIST
        if depth >= MAX_DEPTH:
            raise TermError(f"more than {MAX_DEPTH} levels of nesting")
        count, at = (data[at + 1], at + 2) if tag == 104 else (_u32(data, at + 1)[0], at + 5)
        found: list[Any] = []
        append = found.append
        while count:
            value, at = _decode(data, at, depth + 1)
            append(value)
            count -= 1
        if tag != 108:
            return tuple(found), at
        if data[at] != 106:
            raise TermError("an improper list")
        return found, at + 1
    return _decode_rare(data, at, depth)


def _decode_rare(data: Buffer, at: int, depth: int) -> tuple[Any, int]:
    tag = data[at]
    if tag == 116:  # MAP
        return _map(data, at, depth)
    if tag == 107:  # STRING
        (size,) = _u16(data, at + 1)
        return list(_bytes(data, at + 3, size)), at + 3 + size
    if tag == 70:
        return _f64(data, at + 1)[0], at + 9
    if tag == 99:  # FLOAT, as text
        try:
            return float(_bytes(data, at + 1, 31).rstrip(b"\0")), at + 32
        except ValueError:
            raise TermError("a float that is no number") from None
    if tag == 110 or tag == 111:  # SMALL_BIG, LARGE_BIG
        size, at = (data[at + 1], at + 2) if tag == 110 else (_u32(data, at + 1)[0], at + 5)
        value = int.from_bytes(_bytes(data, at + 1, size), "little")
        return -value if data[at] else value, at + 1 + size
    end = _end_of_opaque(data, at)
    return Opaque(_bytes(data, at, end - at)), end


def _map(data: Buffer, at: int, depth: int) -> tuple[dict[Hashable, Any], int]:
    (count,) = _u32(data, at + 1)
    if count > MAX_MAP or depth >= MAX_DEPTH:
        raise TermError(f"a map of {count} members in {depth} levels of nesting")
    at += 5
    found: dict[Hashable, Any] = {}
    for _ in range(count):
        key, at = _decode(data, at, depth + 1)
        value, at = _decode(data, at, depth + 1)
        try:
            found[key] = value
        except TypeError:
            raise TermError("a list or a map as the key of a map") from None
    return found, at


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
    return _decode(data, at, MAX_DEPTH)[1]


def _bytes(data: Buffer, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise TermError("the term is cut")
    return data[at : at + size]


def _atom(raw: bytes, is_utf8: bool) -> Atom:
    if (known := _KNOWN.get(raw)) is not None:
        return known
    try:
        return Atom(raw.decode("utf-8" if is_utf8 else "latin-1"))
    except UnicodeDecodeError:
        raise TermError("an atom that is no text") from None
