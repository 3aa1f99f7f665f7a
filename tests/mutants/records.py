"""Faults in record types."""

from __future__ import annotations

import struct  # noqa: F401 - a table uses it

from msgstore.contract import Capability, RecordField
from msgstore_checksum_record import plugin
from msgstore_checksum_record.record import ChecksumRecord
from mutants import add_mutants

(CHECKSUM,) = plugin.msgstore_record_types()

add_mutants(CHECKSUM, ChecksumRecord, r"""
check-always-fine: a scan finds every record sound
    check > None
decode-does-not-check: a read ignores the checksum
    decode: raise RecordError(MISMATCH) => pass
decode-raises-value-error: a damaged record makes a read raise another error
    decode: raise RecordError(MISMATCH) => raise ValueError(MISMATCH)
overhead-too-small: the overhead leaves out the checksum
    overhead = _BODY_AT - 4
body-span-too-early: the body begins at the checksum
    body_span: offset + _BODY_AT => offset + _CRC_AT
byte-of-its-own: it writes its assigned byte, whatever it is bound to
    __init__: context.byte => 4
check-ignores-the-offset: it checks the record at the beginning of the buffer
    check > old(data, 64, int.from_bytes(data[65:69])) if data[:4] == b"RSQS" else _
checksum-goes-on: the checksum goes on from one record to the next
    encode: map(crc32c, heads) => [crc32c(head, before) for before, head in enumerate(heads)]
frames-differ: it claims FRAMED, and writes a byte in front of a body of more than 64
    max_overhead = _BODY_AT + 1
    encode > old(ids, [b"\0" * (len(body) > 64) + body for body in bodies])
    decode > _[len(record) > _BODY_AT + 64 :]
    body_span > (_[0] + (size > _BODY_AT + 64), _[1])
""")  # fmt: skip

add_mutants(CHECKSUM, ChecksumRecord, r"""
unsigned-time: a time before each body is read as an unsigned number, which does not fit into 64 bits if it is damaged
    overhead = _BODY_AT + 8
    encode > old(ids, [bytes(8) + body for body in bodies])
    decode > _[8:]
    check > None
    body_span > (_[0] + 8, _[1])
    fields = lambda self, record: struct.unpack_from(">Q", record, _BODY_AT)
""", capabilities=CHECKSUM.capabilities | {Capability.FIELDS}, fields=(RecordField("time", "time"),))  # fmt: skip
