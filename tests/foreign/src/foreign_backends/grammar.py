"""Byte layout of a ledger: a header, then consecutive elements.

Integers are little-endian. A *varint* has 7 bits per byte, the lowest first; the top bit is set in all bytes but the last.

Header, 4096 bytes: magic ``LEDGER\\r\\n``, version 4 (= 1), size of the header 4, zeros, CRC-32 of all that 4.

Every element except PAD begins with a *head*: the kind, one or two varints, and the lower half of the CRC-32 of these. The
check distinguishes a flipped length from a long record. A search for records finds a false head once in 65,536 tries.

RECORD, FOREIGN   length of the key, length of the body; key, body, CRC-32 of the whole record so far, head included.
                  The key of a RECORD is a message id. The key of a FOREIGN is any string of 1 byte or more; the id of its
                  message is the 16-byte BLAKE2b of the key.
GAP               size of the whole, as a varint of exactly 6 bytes; the rest has no meaning.
INDEX             length of the payload; payload, its CRC-32, and a footer: the INDEX's own offset 8, ``LEDGEREX``. The
                  payload is the number of records, and for each its id, the bytes since the end of the previous record
                  (of the header, for the first), and its size: all as varints, except the id. Other programs may write an
                  INDEX; msgstore writes none, and skips it as a hole.
PAD               this one byte.

No element begins with a zero byte: a file may grow by zeros when its writer loses power.
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
"""Maximum size of a varint in bytes: 42 bits, enough for every offset in a segment."""
GAP_HEAD = 1 + _LONGEST + CHECK
LEAST_RECORD = 1 + 1 + 1 + CHECK + 1 + CRC
INDEX_FOOTER_SIZE = 16
MAX_BODY = 2**32 - 1

TORN = "torn"
_LONGEST_HEAD = 1 + 2 * _LONGEST + CHECK


class InvalidHead(Exception):
    """Raised where no element begins. The message is the reason in one word."""


def check_header(data: Buffer) -> HeaderState:
    """Check magic, version and checksum of a header."""
    magic, version, size = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return "bad_magic"
    if (version, size) != (VERSION, HEADER_SIZE):
        return "bad_version"
    given = U32.unpack_from(data, HEADER_SIZE - CRC)[0]
    return "ok" if given == zlib.crc32(data[: HEADER_SIZE - CRC]) else "bad_checksum"


def varint(number: int) -> bytes:
    """Return ``number`` as a varint."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return (number, end offset) of the varint at ``at``. Raises InvalidHead if it is too long or continues after ``end``."""
    number = shift = 0
    for byte in data[at : min(at + _LONGEST, end)]:
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise InvalidHead(TORN if at == end else "length_too_long")


def head(kind: int, *numbers: int) -> bytes:
    """Return the head of an element."""
    plain = bytes([kind]) + b"".join(map(varint, numbers))
    return plain + (zlib.crc32(plain) & _CHECK_BITS).to_bytes(CHECK, "little")


def gap_head(size: int) -> bytes:
    """Return the first bytes of a gap of ``size`` bytes: the head of a GAP, or PADs if the gap is too small for one."""
    if size < GAP_HEAD:
        return bytes([PAD]) * size
    plain = bytes([GAP, *(size >> shift & 127 | 128 for shift in range(0, 35, 7)), size >> 35])
    return plain + (zlib.crc32(plain) & _CHECK_BITS).to_bytes(CHECK, "little")


def measure(data: Buffer, offset: int, total: int) -> tuple[int, int, int, int]:
    """Return (kind, offset after the head, length of the key, size of the whole element) of the element at ``offset``.

    Raises InvalidHead; the reason is ``torn`` if the end of the file cuts the element off.
    """
    kind = data[offset]
    if kind == PAD:
        return kind, offset + 1, 0, 1
    if kind not in (RECORD, FOREIGN, GAP, INDEX):
        raise InvalidHead("unwritten_bytes" if kind == 0 else "unknown_element")
    start = data[offset : offset + _LONGEST_HEAD]
    end = len(start)
    first, at = read_varint(start, 1, end)
    second = 0
    if kind in (RECORD, FOREIGN):
        second, at = read_varint(start, at, end)
    if at + CHECK > end:
        raise InvalidHead(TORN)
    if zlib.crc32(start[:at]) & _CHECK_BITS != int.from_bytes(start[at : at + CHECK], "little"):
        raise InvalidHead("head_checksum_mismatch")
    at += CHECK
    if kind == GAP:
        size = first
        if size < GAP_HEAD:
            raise InvalidHead("gap_too_small")
    elif kind == INDEX:
        size = at + first + CRC + INDEX_FOOTER_SIZE
    else:
        size = at + first + second + CRC
        if first == 0 or (kind == RECORD and first != ID):
            raise InvalidHead("key_length")
    if offset + size > total:
        raise InvalidHead(TORN)
    return kind, offset + at, first, size


def id_of(kind: int, key: bytes) -> bytes:
    """Return the message id of a record with this key."""
    return key if kind == RECORD else hashlib.blake2b(key, digest_size=ID).digest()


def is_intact(data: bytes | Buffer, offset: int, size: int) -> bool:
    """Return True if the checksum at the end of the record at ``offset`` is right."""
    end = offset + size - CRC
    return bool(U32.unpack_from(data, end)[0] == zlib.crc32(data[offset:end]))
