"""Faults in record types."""

from __future__ import annotations

import struct
from functools import partial

import attrs

from msgstore.contract import Capability, RecordError, RecordField
from msgstore_checksum_record import plugin
from msgstore_checksum_record.record import ChecksumRecord
from mutants import MUTANTS, Mutant, broken

(CHECKSUM,) = plugin.msgstore_record_types()
fault = partial(broken, __name__, CHECKSUM, ChecksumRecord)
LONG = ChecksumRecord.overhead + 64


def value_error(self, old, record):
    try:
        return old(record)
    except RecordError as error:
        raise ValueError from error


def first_only(self, old, data, offset, size):
    first = int.from_bytes(data[65:69]) if data[:4] == b"RSQS" else 0
    return old(data, 64, first) if first else old(data, offset, size)


def goes_on(self, old, ids, bodies):
    data, sizes = old(ids, bodies)
    if len(sizes) < 2:
        return data, sizes
    last = bytearray(data[-sizes[-1] :])
    last[21] ^= data[21]
    return data[: -sizes[-1]] + bytes(last), sizes


fault("check-always-fine", "a scan finds every record sound", check=lambda *_: None)
fault("decode-does-not-check", "a read ignores the checksum", decode=lambda self, old, record: record[self.overhead :])
fault("decode-raises-value-error", "a damaged record makes a read raise another error", decode=value_error)
fault("overhead-too-small", "the overhead leaves out the checksum", overhead=ChecksumRecord.overhead - 4)
fault("body-span-too-early", "the body begins at the checksum", body_span=lambda _, old, at, size: (at + 21, at + size))
fault(
    "byte-of-its-own",
    "it writes its assigned byte, whatever it is bound to",
    __init__=lambda self, old, context: setattr(self, "_byte", 4),
)
fault("check-ignores-the-offset", "it checks the record at the beginning of the buffer", check=first_only)
fault("checksum-goes-on", "the checksum goes on from one record to the next", encode=goes_on)
fault(
    "frames-differ",
    "it claims FRAMED, and writes a byte in front of a body of more than 64",
    max_overhead=ChecksumRecord.overhead + 1,
    encode=lambda _, old, ids, bodies: old(ids, [b"\0" * (len(body) > 64) + body for body in bodies]),
    decode=lambda _, old, record: old(record)[len(record) > LONG :],
    body_span=lambda _, old, at, size: (old(at, size)[0] + (size > LONG), old(at, size)[1]),
)


class UnsignedTime(ChecksumRecord):
    """A time before each body, read as an unsigned number."""

    overhead = ChecksumRecord.overhead + 8

    def encode(self, ids, bodies):
        return super().encode(ids, [bytes(8) + body for body in bodies])

    def decode(self, record):
        return record[self.overhead :]

    def check(self, data, offset, size):
        return None

    def body_span(self, offset, size):
        return offset + self.overhead, offset + size

    def fields(self, record):
        return struct.unpack_from(">Q", record, ChecksumRecord.overhead)


UNSIGNED = attrs.evolve(
    CHECKSUM,
    name="unsigned-time",
    factory=f"{__name__}:UnsignedTime",
    capabilities=CHECKSUM.capabilities | {Capability.FIELDS},
    fields=(RecordField("time", "time"),),
)
MUTANTS.append(Mutant("record", UNSIGNED.name, "a field of damaged bytes does not fit into 64 bits", UNSIGNED, CHECKSUM))
