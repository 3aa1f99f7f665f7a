"""Validation of bytes as an Erlang term in the external term format.

Source: the chapter "External Term Format" of the ERTS user's guide, OTP 25 to 27, and the inputs that
``erlang:binary_to_term/1`` of those releases refuses. The form of funs before OTP 23 is also accepted. Refused: atom cache
references and distribution headers, which have a meaning only on a connection, LOCAL_EXT, which has one only on its node, and
the tags 73 and 75. They are an atom's position in the atom table of a running node. ``binary_to_term`` would take the atom that
its own node has there; ``term_to_binary`` never writes them.
Not checked: that the keys of a map differ, and numbers of pids and ports that only the node itself refuses, as it could not
have given them. The size in a fun has no meaning for ``binary_to_term``, and is not checked either.

A term is walked, not built. The walk keeps only the number of terms to come, so nesting costs no memory. Each term has at
least one byte, so a count larger than the number of remaining bytes is refused at once.

A kilobyte of a compressed term can expand to a megabyte of small terms, and walking them takes a second. A compressed term
larger than ``_MAX_WALKED`` is therefore not walked. It is only checked with zlib: that it is complete, undamaged, and has the
declared size.
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
"""Maximum inflated size of a compressed term in bytes. It is RabbitMQ's limit for a message; RabbitMQ does not compress."""
_MAX_WALKED = 2**20
"""Maximum inflated size of a compressed term that is walked, in bytes. A larger term is inflated piece by piece."""
_PIECE = 2**8
"""Compressed bytes inflated at a time. The result has at most a thousand times as many bytes."""
_MAX_DEFLATE_RATIO = 1032
"""Maximum compression ratio of zlib. A term that declares a higher ratio is invalid."""

_SMALL_INTEGER, _INTEGER, _PID, _NEW_PID = 97, 98, 103, 88
_MAX_ATOM = 255
"""Maximum length of an atom in characters."""
_MAX_REFERENCE_WORDS = 5
_MAX_CREATION = 3
"""Largest creation in one byte."""
_MAX_FIRST_WORD = 2**18 - 1
"""Largest first word of a reference whose creation has one byte."""

_U8, _U16, _U32 = struct.Struct("B"), struct.Struct(">H"), struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_FLOAT_TEXT = re.compile(rb"[+-]?\d+[.,]\d+(?:[eE][+-]?\d+)?\0")
_FLOAT_TEXT_SIZE = 31


class _Invalid(ValueError):
    pass


Step: TypeAlias = tuple[int, int]
"""(end of this tag's own bytes, number of terms that follow as part of it)."""
Reader: TypeAlias = Callable[[bytes, int], Step]
"""Called with the offset after the tag. May raise LookupError, struct.error or ValueError. The caller checks the end."""


def is_term(data: bytes) -> bool:
    """Return True if ``data`` begins with one whole term; trailing bytes are accepted. Never raises. Takes linear time."""
    try:
        if data[0] == _VERSION and data[1] != _COMPRESSED:
            walk(data, 1)
        else:
            _inflate(data)
    except (LookupError, struct.error, ValueError, OverflowError, zlib.error):
        return False
    return True


def walk(data: bytes, at: int) -> int:
    """Return the end of the term at offset ``at``. Raises an error if the bytes are not one whole term."""
    size, pending = len(data), 1
    while pending:
        if pending > size - at:
            raise _Invalid("fewer bytes than terms")
        at, more = _READERS[data[at]](data, at + 1)
        pending += more - 1
    if at > size:
        raise _Invalid("cut off")
    return at


def uncompressed(data: bytes) -> bytes:
    """Return version and term. Raises an error for a compressed term that is invalid, or larger than ``_MAX_WALKED``."""
    if data[0] == _VERSION and data[1] != _COMPRESSED:
        return data
    inflated = _inflate(data)
    if not inflated:
        raise _Invalid("too large")
    return data[:1] + inflated


def _inflate(data: bytes) -> bytes:
    """Return the term in a compressed one; empty if it is larger than ``_MAX_WALKED``, and so was not walked.

    Raises an error unless a compressed term inflates to exactly the declared size and to one term.
    """
    declared: int = _U32.unpack_from(data, 2)[0]
    if data[:2] != bytes([_VERSION, _COMPRESSED]) or declared > min(_MAX_INFLATED, len(data) * _MAX_DEFLATE_RATIO):
        raise _Invalid("no compressed term, or the declared size is too large")
    stream = zlib.decompressobj()
    kept, size = bytearray(), 0
    for at in range(6, len(data), _PIECE):
        piece = stream.decompress(data[at : at + _PIECE], declared + 1 - size)
        size += len(piece)
        if declared <= _MAX_WALKED:
            kept += piece
        if size > declared or stream.eof:
            break
    if size != declared or not stream.eof:
        raise _Invalid("not the declared size")
    if declared <= _MAX_WALKED:
        walk(bytes(kept), 0)
    return bytes(kept)


def _fixed(size: int) -> Reader:
    return lambda _, at: (at + size, 0)


def _sized(length: struct.Struct, extra: int = 0) -> Reader:
    """Return a reader of a length field, ``extra`` more bytes, and ``length`` bytes."""
    return lambda data, at: (at + length.size + extra + length.unpack_from(data, at)[0], 0)


def _counted(count: struct.Struct, each: int = 1, extra: int = 0) -> Reader:
    """Return a reader of a count field, followed by ``count`` times ``each`` terms and ``extra`` more terms."""
    return lambda data, at: (at + count.size, each * count.unpack_from(data, at)[0] + extra)


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
    """Return a reader of a node name and ``size`` bytes: pids and ports."""
    return lambda data, at: (_atom_end(data, at) + size, 0)


def _on_node_before_otp_23(size: int) -> Reader:
    """Return a reader of a node name, ``size`` bytes, and a creation of one byte."""

    def read(data: bytes, at: int) -> Step:
        creation = _atom_end(data, at) + size
        if data[creation] > _MAX_CREATION:
            raise _Invalid("bad creation")
        return creation + 1, 0

    return read


def _oldest_reference(data: bytes, at: int) -> Step:
    """Read a node name, one word, and a creation of one byte."""
    if _U32.unpack_from(data, _atom_end(data, at))[0] > _MAX_FIRST_WORD:
        raise _Invalid("bad reference")
    return _on_node_before_otp_23(4)(data, at)


def _reference(creation: int) -> Reader:
    """Return a reader of the number of words, a node name, a creation of so many bytes, and the words."""

    def read(data: bytes, at: int) -> Step:
        words: int = _U16.unpack_from(data, at)[0]
        begin = _atom_end(data, at + 2)
        if not 1 <= words <= _MAX_REFERENCE_WORDS:
            raise _Invalid("bad reference")
        if creation == 1 and (data[begin] > _MAX_CREATION or _U32.unpack_from(data, begin + creation)[0] > _MAX_FIRST_WORD):
            raise _Invalid("bad reference")
        return begin + creation + 4 * words, 0

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
    """Read a length, the number of bits used in the last byte (1-8, or 0 if there is no byte), and the bytes."""
    size: int = _U32.unpack_from(data, at)[0]
    if data[at + 4] > 8 or (data[at + 4] == 0) != (size == 0):
        raise _Invalid("bad bits")
    return at + 5 + size, 0


def _small_integer(data: bytes, at: int) -> int:
    """Return the end of an integer term inside a fun."""
    return at + {_SMALL_INTEGER: 2, _INTEGER: 5}[data[at]]


def _pid(data: bytes, at: int) -> int:
    """Return the end of a pid inside a fun."""
    return _READERS[{_PID: _PID, _NEW_PID: _NEW_PID}[data[at]]](data, at + 1)[0]


def _export(data: bytes, at: int) -> Step:
    arity = _atom_end(data, _atom_end(data, at))
    if data[arity] != _SMALL_INTEGER:
        raise _Invalid("bad arity")
    return arity + 2, 0


def _new_fun(data: bytes, at: int) -> Step:
    """Read size 4 (not checked), arity 1, hash 16, index 4, number of free variables 4, module, two integers, pid.

    The free variables follow as terms.
    """
    integers = _atom_end(data, at + 29)
    pid = _small_integer(data, _small_integer(data, integers))
    return _pid(data, pid), _U32.unpack_from(data, at + 25)[0]


def _old_fun(data: bytes, at: int) -> Step:
    """Read number of free variables 4, pid, module, two integers. The free variables follow as terms."""
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
    101: _oldest_reference,
    102: _on_node_before_otp_23(4),  # PORT: id
    103: _on_node_before_otp_23(8),  # PID: id 4, serial 4
    104: _counted(_U8),
    105: _counted(_U32),
    106: _fixed(0),
    107: _sized(_U16),
    108: _counted(_U32, extra=1),  # the tail
    109: _sized(_U32),
    110: _sized(_U8, extra=1),  # the sign
    111: _sized(_U32, extra=1),
    112: _new_fun,
    113: _export,
    114: _reference(creation=1),
    116: _counted(_U32, each=2),
    117: _old_fun,
    120: _on_node(12),  # V4_PORT: id 8, creation 4
}
