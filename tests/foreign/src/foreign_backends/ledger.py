"""Segment format ``ledger``. :class:`msgstore.contract.CompactableFormat` documents the methods.

Byte layout: a header, then consecutive elements.

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
import re
import zlib
from collections.abc import Sequence
from struct import Struct

from msgstore.contract import Buffer, CheckBody, Damage, FormatContext, GapFill, RecordError, SegmentScan
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
_SECTOR = 512
"""Bytes that a disk writes atomically, at least."""
_zeros_at = re.compile(rb"\0*").match
_record_kinds = re.compile(b"[RF]").finditer


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


class LedgerFormat:
    """Format of ``.ledger`` files. msgstore writes RECORDs. FOREIGNs of other programs are read, moved and copied unchanged."""

    header = HEADER
    max_body = MAX_BODY

    def __init__(self, context: FormatContext) -> None:
        pass

    def encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        heads = {length: head(RECORD, ID, length) for length in set(map(len, bodies))}
        parts: list[bytes] = []
        sizes: list[int] = []
        for msg_id, body in zip(ids, bodies, strict=True):
            front = heads[len(body)] + msg_id
            parts += (front, body, U32.pack(zlib.crc32(body, zlib.crc32(front))))
            sizes.append(len(front) + len(body) + CRC)
        return b"".join(parts), sizes

    def decode(self, msg_id: bytes, record: bytes) -> bytes:
        if len(record) < LEAST_RECORD:
            raise RecordError("size_mismatch", f"{len(record)} bytes, fewer than any record has")
        try:
            kind, at, key, size = measure(record, 0, len(record))
        except InvalidHead as error:
            raise RecordError("size_mismatch" if str(error) == TORN else str(error)) from None
        if kind not in (RECORD, FOREIGN):
            raise RecordError("not_a_record", f"the element begins with {chr(kind)!r}")
        if size != len(record):
            raise RecordError("size_mismatch", f"the size is {size} bytes in the record, {len(record)} in the index")
        found = id_of(kind, record[at : at + key])
        if found != msg_id:
            raise RecordError("id_mismatch", f"the record has the id {found.hex()}")
        if not is_intact(record, 0, size):
            raise RecordError("checksum_mismatch")
        return record[at + key : -CRC]

    def body_span(self, data: Buffer, offset: int, size: int) -> tuple[int, int]:
        _, at, key, _ = measure(data, offset, len(data))
        return at + key, offset + size - CRC

    def scan(self, data: Buffer, *, start: int = 0, check_body: CheckBody | None = None) -> SegmentScan:
        scan = SegmentScan()
        total = len(data)
        if total < HEADER_SIZE:
            return scan.ended("torn", 0)
        scan.header = check_header(data)
        offset = max(start, HEADER_SIZE)
        if offset > total:
            return scan.ended("torn", offset)
        found = self._scan_elements(data, offset, scan, check_body)
        found.separate_copies()
        return found

    def _scan_elements(self, data: Buffer, offset: int, scan: SegmentScan, check_body: CheckBody | None) -> SegmentScan:
        """Add all elements from ``offset`` on to ``scan``, set its end, and return it. GAPs, INDEXes and PADs are holes."""
        total = len(data)
        while offset < total:
            try:
                kind, at, key, size = measure(data, offset, total)
            except InvalidHead as error:
                zeros = _zeros_at(data, offset)
                if str(error) == TORN or (zeros is not None and zeros.end() == total):
                    return scan.ended("torn", offset)
                return scan.ended("corrupt", offset, str(error))
            if kind in (RECORD, FOREIGN):
                if not is_intact(data, offset, size):
                    scan.damage.append(Damage(offset, size, "checksum_mismatch"))
                elif check_body is not None and not check_body(
                    id_of(kind, data[at : at + key]), data[at + key : offset + size - CRC]
                ):
                    scan.damage.append(Damage(offset, size, "invalid_message_body"))
                else:
                    scan.records.add(id_of(kind, data[at : at + key]), offset, size)
            else:
                scan.hole_offsets.append(offset)
                scan.hole_sizes.append(size)
            offset += size
        return scan.ended("clean", offset)

    def find_chain(self, data: Buffer, start: int, length: int = 8) -> int | None:
        """Find a record that valid elements follow. Reads only heads, each of a few bytes, so the search is linear."""
        total = len(data)
        for match in _record_kinds(data, max(start, HEADER_SIZE)):
            if _is_chain(data, match.start(), total, length):
                return match.start()
        return None

    def gap_room(self, offset: int, size: int) -> int:
        """Return ``size``, or 0 if no record fits or the head of the gap spans two sectors and could be torn."""
        straddles = offset % _SECTOR > _SECTOR - GAP_HEAD
        return 0 if straddles or size < LEAST_RECORD + ID else size

    def fill_gap(self, offset: int, size: int, records: Sequence[bytes]) -> GapFill:
        """Return the writes that put ``records`` into the gap.

        First the gap becomes a GAP, and a scan skips its inside. Then everything is written except the bytes that the head of
        the GAP covers. Those bytes come last and make the records visible.
        """
        if not records:
            return GapFill()
        run = b"".join(records)
        if len(run) > self.gap_room(offset, size):
            raise ValueError(f"the gap of {size} bytes at {offset} has no room for {len(run)} bytes of records")
        inside = run[GAP_HEAD:] + gap_head(size - len(run))
        return GapFill(
            prepare=[(offset, gap_head(size))],
            inside=[(offset + GAP_HEAD, inside)],
            seal=[(offset, run[:GAP_HEAD])],
        )


def _is_chain(data: Buffer, offset: int, total: int, length: int) -> bool:
    for _ in range(length):
        try:
            size = measure(data, offset, total)[3]
        except InvalidHead:
            return False
        offset += size
        if offset == total:
            return True
    return True
