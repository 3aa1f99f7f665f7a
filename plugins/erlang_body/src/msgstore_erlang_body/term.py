"""Whether bytes are an Erlang term in the external term format.

Source: the chapter "External Term Format" of the ERTS user's guide, OTP 25 to 27, and what ``erlang:binary_to_term/1`` of
those releases refuses. Of funs, the form before OTP 23 is accepted too. Refused: atom cache references and distribution
headers, which only mean something on a connection, and LOCAL_EXT, which means something to one node only. Not checked: that the
keys of a map differ.

A term is walked, not built. Nothing but the number of terms still to come has to be remembered, so nesting costs nothing; each
takes a byte at least, so a count larger than the bytes that are left is refused before anything is done with it.

A kilobyte of a compressed term can stand for a megabyte of small terms, and a second of walking. So of one that is larger than
``_MAX_WALKED`` only what zlib checks is checked: that it is whole, of the size that it claims, and what was compressed.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Callable
from typing import TypeAlias

_VERSION = 131
_COMPRESSED = 80
_MAX_INFLATED = 128 * 2**20
"""Bytes; a compressed term above this is refused. RabbitMQ's own limit for a message, which it never compresses."""
_MAX_WALKED = 2**20
"""Bytes; a compressed term that is larger is inflated piece by piece and not walked."""
_PIECE = 2**8
"""Compressed bytes that are inflated at a time; at most a thousand times as many come out."""
_MAX_DEFLATE_RATIO = 1032
"""zlib never does better, so a higher claim is a lie."""

_SMALL_INTEGER, _INTEGER, _PID, _NEW_PID = 97, 98, 103, 88
_MAX_ATOM = 255
"""Characters."""
_MAX_REFERENCE_WORDS = 5

_U8, _U16, _U32 = struct.Struct("B"), struct.Struct(">H"), struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_FLOAT_TEXT = re.compile(rb"[+-]?\d+[.,]\d+(?:[eE][+-]?\d+)?\0")
_FLOAT_TEXT_SIZE = 31


class _Invalid(ValueError):
    pass


Step: TypeAlias = tuple[int, int]
"""Where the bytes of this tag end, and how many terms follow as part of it."""
Reader: TypeAlias = Callable[[bytes, int], Step]
"""Called with the offset behind the tag. May raise LookupError, struct.error or ValueError; its caller checks the end."""


def is_term(data: bytes) -> bool:
    """Whether ``data`` begins with one whole term. Linear in its size, never raises; trailing bytes are accepted."""
    try:
        if data[0] != _VERSION:
            return False
        if data[1] == _COMPRESSED:
            _check_compressed(data)
        else:
            _walk(data, 1)
    except (LookupError, struct.error, ValueError, OverflowError, zlib.error):
        return False
    return True


def _walk(data: bytes, at: int) -> int:
    """The end of the term at ``at``."""
    size, pending = len(data), 1
    while pending:
        if pending > size - at:
            raise _Invalid("fewer bytes than terms")
        at, more = _READERS[data[at]](data, at + 1)
        pending += more - 1
    if at > size:
        raise _Invalid("cut off")
    return at


def _check_compressed(data: bytes) -> None:
    """A compressed term holds the declared number of bytes, neither more nor fewer, and one term in them."""
    declared: int = _U32.unpack_from(data, 2)[0]
    if declared > min(_MAX_INFLATED, len(data) * _MAX_DEFLATE_RATIO):
        raise _Invalid("claims to be too large")
    stream = zlib.decompressobj()
    piece, kept, size = b"", bytearray(), 0
    for at in range(6, len(data), _PIECE):
        piece = stream.decompress(data[at : at + _PIECE], declared + 1 - size)
        size += len(piece)
        if size > declared or stream.eof:
            break
        if declared <= _MAX_WALKED:
            kept += piece
    if size != declared or not stream.eof:
        raise _Invalid("not the declared size")
    if declared <= _MAX_WALKED:
        _walk(bytes(kept + piece), 0)


def _fixed(size: int) -> Reader:
    return lambda _, at: (at + size, 0)


def _sized(length: struct.Struct, beside: int = 0) -> Reader:
    """A length, ``beside`` more bytes, and as many bytes as the length says."""
    return lambda data, at: (at + length.size + beside + length.unpack_from(data, at)[0], 0)


def _counted(count: struct.Struct, each: int = 1, beside: int = 0) -> Reader:
    """A count; ``each`` terms for each, and ``beside`` more."""
    return lambda data, at: (at + count.size, each * count.unpack_from(data, at)[0] + beside)


def _atom(length: struct.Struct, encoding: str) -> Reader:
    def read(data: bytes, at: int) -> Step:
        begin = at + length.size
        end = begin + length.unpack_from(data, at)[0]
        if end > len(data) or len(data[begin:end].decode(encoding)) > _MAX_ATOM:
            raise _Invalid("bad atom")
        return end, 0

    return read


_ATOMS: dict[int, Reader] = {
    100: _atom(_U16, "latin-1"),
    115: _atom(_U8, "latin-1"),
    118: _atom(_U16, "utf-8"),
    119: _atom(_U8, "utf-8"),
}


def _atom_end(data: bytes, at: int) -> int:
    return _ATOMS[data[at]](data, at + 1)[0]


def _on_node(size: int) -> Reader:
    """The name of a node and ``size`` bytes: pids, ports, the oldest references."""
    return lambda data, at: (_atom_end(data, at) + size, 0)


def _reference(creation: int) -> Reader:
    def read(data: bytes, at: int) -> Step:
        words: int = _U16.unpack_from(data, at)[0]
        if not 1 <= words <= _MAX_REFERENCE_WORDS:
            raise _Invalid("bad reference")
        return _atom_end(data, at + 2) + creation + 4 * words, 0

    return read


def _float(data: bytes, at: int) -> Step:
    if not math.isfinite(_DOUBLE.unpack_from(data, at)[0]):
        raise _Invalid("not a number")
    return at + 8, 0


def _float_text(data: bytes, at: int) -> Step:
    match = _FLOAT_TEXT.match(data, at, at + _FLOAT_TEXT_SIZE)
    if match is None or not math.isfinite(float(match[0][:-1].replace(b",", b"."))):
        raise _Invalid("bad float")
    return at + _FLOAT_TEXT_SIZE, 0


def _bit_binary(data: bytes, at: int) -> Step:
    """A length, the number of bits used in the last byte (1-8, or 0 if there is no byte), the bytes."""
    size: int = _U32.unpack_from(data, at)[0]
    if data[at + 4] > 8 or (data[at + 4] == 0) != (size == 0):
        raise _Invalid("bad bits")
    return at + 5 + size, 0


def _small_integer(data: bytes, at: int) -> int:
    """The end of an integer that a fun keeps as a term."""
    return at + {_SMALL_INTEGER: 2, _INTEGER: 5}[data[at]]


def _pid(data: bytes, at: int) -> int:
    return _atom_end(data, at + 1) + {_PID: 9, _NEW_PID: 12}[data[at]]


def _export(data: bytes, at: int) -> Step:
    arity = _atom_end(data, _atom_end(data, at))
    if data[arity] != _SMALL_INTEGER:
        raise _Invalid("bad arity")
    return arity + 2, 0


def _new_fun(data: bytes, at: int) -> Step:
    """Size 4 (itself included), arity 1, hash 16, index 4, number of free variables 4, module, two integers, pid, variables."""
    if _U32.unpack_from(data, at)[0] > len(data) - at:
        raise _Invalid("cut off")
    integers = _atom_end(data, at + 29)
    pid = _small_integer(data, _small_integer(data, integers))
    return _pid(data, pid), _U32.unpack_from(data, at + 25)[0]


def _old_fun(data: bytes, at: int) -> Step:
    """Number of free variables 4, pid, module, two integers, variables."""
    integers = _atom_end(data, _pid(data, at + 4))
    return _small_integer(data, _small_integer(data, integers)), _U32.unpack_from(data, at)[0]


_READERS: dict[int, Reader] = {
    **_ATOMS,
    70: _float,
    77: _bit_binary,
    88: _on_node(12),  # NEW_PID: id 4, serial 4, creation 4
    89: _on_node(8),  # NEW_PORT: id 4, creation 4
    90: _reference(creation=4),
    97: _fixed(1),
    98: _fixed(4),
    99: _float_text,
    101: _on_node(5),  # REFERENCE: id 4, creation 1
    102: _on_node(5),  # PORT: id 4, creation 1
    103: _on_node(9),  # PID: id 4, serial 4, creation 1
    104: _counted(_U8),
    105: _counted(_U32),
    106: _fixed(0),
    107: _sized(_U16),
    108: _counted(_U32, beside=1),  # the tail
    109: _sized(_U32),
    110: _sized(_U8, beside=1),  # the sign
    111: _sized(_U32, beside=1),
    112: _new_fun,
    113: _export,
    114: _reference(creation=1),
    116: _counted(_U32, each=2),
    117: _old_fun,
    120: _on_node(12),  # V4_PORT: id 8, creation 4
}
