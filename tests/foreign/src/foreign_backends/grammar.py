"""The bytes of a ledger: a header, then elements one behind the other, and perhaps an index behind the last one.

Integers are little-endian; a *varint* has 7 bits a byte, the lowest first, the top bit set in all but the last.

Header, 4096 bytes: magic ``LEDGER\\r\\n``, version 4 (= 1), size of the header 4, zeros, CRC-32 of all that 4.

Every element but PAD begins with a *head*: the kind, one or two varints, and the lower half of the CRC-32 of these. So a
flipped length is told from a long record, and a search for records is fooled once in 65,536 tries, not in a few.

RECORD, FOREIGN   length of the key, length of the body; key, body, CRC-32 of the whole record so far, head included.
                  The key of a RECORD is a message id. That of a FOREIGN is anything of 1 byte or more, and the id of its
                  message is the key's BLAKE2b of 16 bytes.
GAP               size of the whole, as a varint of exactly 6 bytes; nobody interprets what is in it.
INDEX             length of the payload; payload, its CRC-32, and a footer: the INDEX's own offset 8, ``LEDGEREX``. The
                  payload is the number of records, and for each its id, the bytes since the end of the one before (of
                  the header, for the first), and its size: all as varints, but the id.
PAD               this one byte.

No element begins with a zero byte: that is what a file grows by when its writer loses power.
"""

from __future__ import annotations

import hashlib
import zlib
from struct import Struct

from msgstore.contract import Buffer
from msgstore.contract.formats import HeaderState

MAGIC, VERSION, HEADER_SIZE = b"LEDGER\r\n", 1, 4096
U32 = Struct("<I")
_HEADER = Struct("<8sII")
_PLAIN_HEADER = _HEADER.pack(MAGIC, VERSION, HEADER_SIZE).ljust(HEADER_SIZE - U32.size, b"\0")
HEADER = _PLAIN_HEADER + U32.pack(zlib.crc32(_PLAIN_HEADER))

RECORD, FOREIGN, GAP, INDEX, PAD = b"RFGI."
ID = 16
CRC = U32.size
CHECK = 2
_CHECK_BITS = 0xFFFF
_LONGEST = 6
"""Bytes of a varint: 42 bits, more than a segment has."""
GAP_HEAD = 1 + _LONGEST + CHECK
LEAST_RECORD = 1 + 1 + 1 + CHECK + 1 + CRC
FOOTER = Struct("<Q8s")
FOOTER_MAGIC = b"LEDGEREX"
MAX_BODY = 2**32 - 1

TORN = "torn"
_LONGEST_HEAD = 1 + 2 * _LONGEST + CHECK


class BadHead(Exception):
    """No element begins here; the message is why, in one word."""


def judge_header(data: Buffer) -> HeaderState:
    magic, version, size = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return "bad_magic"
    if (version, size) != (VERSION, HEADER_SIZE):
        return "bad_version"
    given = U32.unpack_from(data, HEADER_SIZE - CRC)[0]
    return "ok" if given == zlib.crc32(data[: HEADER_SIZE - CRC]) else "bad_checksum"


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """(number, where it ends). BadHead if it goes over ``end``, or is too long."""
    number = shift = 0
    for byte in data[at : min(at + _LONGEST, end)]:
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise BadHead(TORN if at == end else "length_too_long")


def head(kind: int, *numbers: int) -> bytes:
    plain = bytes([kind]) + b"".join(map(varint, numbers))
    return plain + (zlib.crc32(plain) & _CHECK_BITS).to_bytes(CHECK, "little")


def gap_head(size: int) -> bytes:
    """What makes a gap of ``size`` bytes one that hides its inside; too small a gap is PADs."""
    if size < GAP_HEAD:
        return bytes([PAD]) * size
    plain = bytes([GAP, *(size >> shift & 127 | 128 for shift in range(0, 35, 7)), size >> 35])
    return plain + (zlib.crc32(plain) & _CHECK_BITS).to_bytes(CHECK, "little")


def measure(data: Buffer, offset: int, total: int) -> tuple[int, int, int, int]:
    """(kind, where what is behind the head begins, length of the key, size of the whole element) of what begins at ``offset``.

    Raises BadHead: ``torn`` if the end of the file cuts it off, or if there are but zeros.
    """
    kind = data[offset]
    if kind == PAD:
        return kind, offset + 1, 0, 1
    if kind not in (RECORD, FOREIGN, GAP, INDEX):
        raise BadHead("unwritten_bytes" if kind == 0 else "unknown_element")
    start = data[offset : offset + _LONGEST_HEAD]
    end = len(start)
    first, at = read_varint(start, 1, end)
    second = 0
    if kind in (RECORD, FOREIGN):
        second, at = read_varint(start, at, end)
    if at + CHECK > end:
        raise BadHead(TORN)
    if zlib.crc32(start[:at]) & _CHECK_BITS != int.from_bytes(start[at : at + CHECK], "little"):
        raise BadHead("head_checksum_mismatch")
    at += CHECK
    if kind == GAP:
        size = first
        if size < GAP_HEAD:
            raise BadHead("gap_too_small")
    elif kind == INDEX:
        size = at + first + CRC + FOOTER.size
    else:
        size = at + first + second + CRC
        if first == 0 or (kind == RECORD and first != ID):
            raise BadHead("key_length")
    if offset + size > total:
        raise BadHead(TORN)
    return kind, offset + at, first, size


def id_of(kind: int, key: bytes) -> bytes:
    """The id of the message of a record with this key."""
    return key if kind == RECORD else hashlib.blake2b(key, digest_size=ID).digest()


def is_whole(element: bytes | Buffer, offset: int, size: int) -> bool:
    """Whether the checksum at the end of a record is right."""
    end = offset + size - CRC
    return bool(U32.unpack_from(element, end)[0] == zlib.crc32(element[offset:end]))
