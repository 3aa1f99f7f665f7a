"""Faults in record types."""

from __future__ import annotations

import struct

import attrs

from msgstore.contract import Capability, RecordError, RecordField
from msgstore_checksum_record import plugin
from msgstore_checksum_record.record import ChecksumRecord
from mutants import Broken

fault = Broken(plugin.msgstore_record_types()[0], ChecksumRecord)
LONG = ChecksumRecord.overhead + 64

fault("check-always-fine", "a scan finds every record sound", check=lambda *_: None)
fault("decode-does-not-check", "a read ignores the checksum", decode=lambda self, old, record: record[self.overhead :])
fault("overhead-too-small", "the overhead leaves out the checksum", overhead=ChecksumRecord.overhead - 4)
fault("body-span-too-early", "the body begins at the checksum", body_span=lambda _, old, at, size: (at + 21, at + size))
fault(
    "byte-of-its-own",
    "it writes its assigned byte, whatever it is bound to",
    __init__=lambda self, old, context: setattr(self, "_byte", 4),
)
fault(
    "frames-differ",
    "it claims FRAMED, and writes a byte in front of a body of more than 64",
    max_overhead=ChecksumRecord.overhead + 1,
    encode=lambda _, old, ids, bodies: old(ids, [b"\0" * (len(body) > 64) + body for body in bodies]),
    decode=lambda _, old, record: old(record)[len(record) > LONG :],
    body_span=lambda _, old, at, size: (old(at, size)[0] + (size > LONG), old(at, size)[1]),
)


@fault.of("decode")
def decode_raises_value_error(self, old, record):
    """A damaged record makes a read raise another error."""
    try:
        return old(record)
    except RecordError as error:
        raise ValueError from error


@fault.of("check")
def check_ignores_the_offset(self, old, data, offset, size):
    """It checks the record at the beginning of the buffer."""
    first = int.from_bytes(data[65:69]) if data[:4] == b"RSQS" else 0
    return old(data, 64, first) if first else old(data, offset, size)


@fault.of("encode")
def checksum_goes_on(self, old, ids, bodies):
    """The checksum goes on from one record to the next."""
    data, sizes = old(ids, bodies)
    if len(sizes) < 2:
        return data, sizes
    last = bytearray(data[-sizes[-1] :])
    last[21] ^= data[21]
    return data[: -sizes[-1]] + bytes(last), sizes


TIMED = {"capabilities": fault.original.capabilities | {Capability.FIELDS}, "fields": (RecordField("time", "time"),)}
attrs.evolve(fault, faulty=TIMED)(
    "unsigned-time",
    "a time before each body is read as an unsigned number: of damaged bytes, it does not fit into 64 bits",
    overhead=ChecksumRecord.overhead + 8,
    encode=lambda _, old, ids, bodies: old(ids, [bytes(8) + body for body in bodies]),
    decode=lambda self, old, record: record[self.overhead :],
    check=lambda *_: None,
    body_span=lambda self, old, offset, size: (offset + self.overhead, offset + size),
    fields=lambda self, old, record: struct.unpack_from(">Q", record, ChecksumRecord.overhead),
)
