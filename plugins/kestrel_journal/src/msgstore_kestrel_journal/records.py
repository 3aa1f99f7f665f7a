"""Records of a Kestrel journal: opcodes, sizes, and the item that a record adds.

All integers are little-endian and signed. A record is one opcode byte and, depending on it::

    0 ADD                    i32 size, i32 expiry in seconds, data                  read only (Starling)
    1 REMOVE
    2 ADDX                   i32 size, i64 time of the add, i64 expiry, data        times in milliseconds
    3 REMOVE_TENTATIVE                                                              read only
    4 SAVE_XID               i32 xid                                                read only
    5 UNREMOVE               i32 xid
    6 CONFIRM_REMOVE         i32 xid
    7 ADD_XID                i32 xid, then as ADDX                                  read only
    8 CONTINUE               i32 xid, then as ADDX
    9 REMOVE_TENTATIVE_XID   i32 xid

``size`` counts the bytes behind itself. An expiry of 0 is none. There is no header, checksum, or padding. Source of the rules:
Kestrel's ``docs/journal_format.md``, and its last code where the two differ (docs/spec/kestrel-journal.md).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import NamedTuple

ADD, REMOVE, ADDX, REMOVE_TENTATIVE, SAVE_XID, UNREMOVE, CONFIRM_REMOVE, ADD_XID, CONTINUE, REMOVE_TENTATIVE_XID = range(10)

TIMES = 16
"""Bytes of the two times, which ``size`` counts. ADD has an expiry of 4 bytes instead."""
MAX_DATA = 2**31 - 1 - TIMES
"""Bytes of an item's data."""
ADD_EXPIRY = 4

ITEMS = frozenset((ADD, ADDX, ADD_XID, CONTINUE))
"""Opcodes of records that add an item."""
ITEM_OVERHEAD = 21
"""Bytes of an ADDX beside its data."""

_I32 = struct.Struct("<i")
_ADD = struct.Struct("<ii")
_ADDX = struct.Struct("<iqq")
_WITH_XID = struct.Struct("<iiqq")

Buffer = bytes | mmap.mmap
read_i32 = _I32.unpack_from


class Item(NamedTuple):
    """An item, as the record that adds it has it."""

    xid: int
    """Number of the transaction that ADD_XID and CONTINUE name; 0 for other records."""
    add_ms: int | None
    """None: the record is an ADD, which has no time."""
    expiry_ms: int
    """0: never."""
    begin: int
    """Offset of the data."""
    end: int
    """Offset behind the data, and behind the record."""


def read_item(journal: Buffer, at: int) -> Item:
    """Return the item of the record at ``at``, which a replay has found whole: ADD, ADDX, ADD_XID or CONTINUE."""
    opcode = journal[at]
    if opcode == ADDX:
        size, add_ms, expiry_ms = _ADDX.unpack_from(journal, at + 1)
        return Item(0, add_ms, expiry_ms, at + 21, at + 5 + size)
    if opcode == ADD:
        size, seconds = _ADD.unpack_from(journal, at + 1)
        return Item(0, None, seconds * 1000, at + 9, at + 5 + size)
    xid, size, add_ms, expiry_ms = _WITH_XID.unpack_from(journal, at + 1)
    return Item(xid, add_ms, expiry_ms, at + 25, at + 9 + size)


class Columns(NamedTuple):
    """Items of several records."""

    bodies: list[bytes]
    sizes: list[int]
    """Bytes of the records."""
    add_ms: list[int | None]
    expiry_ms: list[int]

    def begin(self, count: int) -> Columns:
        """Return the first items."""
        return Columns(self.bodies[:count], self.sizes[:count], self.add_ms[:count], self.expiry_ms[:count])


def read_columns(journal: Buffer, offsets: Sequence[int]) -> Columns:
    """Return the items of records that a replay has found whole. Fast if all are ADDX, as nearly all are."""
    if all(journal[at] == ADDX for at in offsets):
        read = _ADDX.unpack_from
        heads = [read(journal, at + 1) for at in offsets]
        bodies = [journal[at + 21 : at + 5 + head[0]] for at, head in zip(offsets, heads, strict=True)]
        return Columns(bodies, [head[0] + 5 for head in heads], [head[1] for head in heads], [head[2] for head in heads])
    items = [read_item(journal, at) for at in offsets]
    return Columns(
        [journal[item.begin : item.end] for item in items],
        [item.end - at for item, at in zip(items, offsets, strict=True)],
        [item.add_ms for item in items],
        [item.expiry_ms for item in items],
    )


def size_of(head: Buffer) -> int:
    """Return the bytes of a whole record by its first bytes, of which there are up to 9."""
    opcode = head[0]
    if opcode in (REMOVE, REMOVE_TENTATIVE):
        return 1
    if opcode not in ITEMS:
        return 5
    begin = 1 if opcode in (ADD, ADDX) else 5
    (size,) = read_i32(head, begin)
    return begin + 4 + int(size)


def encode_addx(data: bytes, add_ms: int, expiry_ms: int) -> bytes:
    """Return an ADDX record."""
    return b"\x02" + _ADDX.pack(len(data) + TIMES, add_ms, expiry_ms) + data


def encode_continue(xid: int, data: bytes, add_ms: int, expiry_ms: int) -> bytes:
    """Return a CONTINUE record, which closes ``xid`` and adds an item. Raises ValueError for xid 0, which no reader expects."""
    if not xid:
        raise ValueError("xid 0 is never written: Kestrel leaves it out of a CONTINUE, which then cannot be read")
    return b"\x08" + _WITH_XID.pack(xid, len(data) + TIMES, add_ms, expiry_ms) + data


def encode_xid(opcode: int, xid: int) -> bytes:
    """Return a record of an opcode and a xid: SAVE_XID, UNREMOVE, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID."""
    return bytes((opcode,)) + _I32.pack(xid)
