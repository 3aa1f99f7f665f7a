"""Faults in record types."""

from __future__ import annotations

from msgstore.contract import RecordError
from msgstore_checksum_record import plugin
from msgstore_checksum_record.record import ChecksumRecord
from mutants import mutant

(CHECKSUM,) = plugin.msgstore_record_types()


@mutant(CHECKSUM, "a scan finds every record sound")
class CheckAlwaysFine(ChecksumRecord):
    def check(self, data, offset, size):
        return None


@mutant(CHECKSUM, "a read does not look at the checksum")
class DecodeDoesNotCheck(ChecksumRecord):
    def decode(self, record):
        return record[self.overhead :]


@mutant(CHECKSUM, "a damaged record makes a read raise what it should not")
class DecodeRaisesValueError(ChecksumRecord):
    def decode(self, record):
        try:
            return super().decode(record)
        except RecordError as error:
            raise ValueError from error


@mutant(CHECKSUM, "the overhead leaves out the checksum")
class OverheadTooSmall(ChecksumRecord):
    overhead = ChecksumRecord.overhead - 4


@mutant(CHECKSUM, "the body is said to begin at the checksum")
class BodySpanTooEarly(ChecksumRecord):
    def body_span(self, offset, size):
        return offset + 21, offset + size


@mutant(CHECKSUM, "it writes its assigned byte, whatever it is bound to")
class ByteOfItsOwn(ChecksumRecord):
    def __init__(self, context):
        self._byte = 4


@mutant(CHECKSUM, "it checks the record at the beginning of the buffer")
class CheckIgnoresTheOffset(ChecksumRecord):
    def check(self, data, offset, size):
        first = int.from_bytes(data[65:69]) if data[:4] == b"RSQS" else 0
        return super().check(data, 64, first) if first else super().check(data, offset, size)


@mutant(CHECKSUM, "the checksum goes on from one record to the next")
class ChecksumGoesOn(ChecksumRecord):
    def encode(self, ids, bodies):
        data, sizes = super().encode(ids, bodies)
        if len(sizes) < 2:
            return data, sizes
        last = bytearray(data[-sizes[-1] :])
        last[21] ^= data[21]
        return data[: -sizes[-1]] + bytes(last), sizes


@mutant(CHECKSUM, "it claims FRAMED, and writes a byte in front of a body of more than 64")
class FramesDiffer(ChecksumRecord):
    max_overhead = ChecksumRecord.overhead + 1

    def encode(self, ids, bodies):
        return super().encode(ids, [b"\0" * (len(body) > 64) + body for body in bodies])

    def decode(self, record):
        return super().decode(record)[len(record) > self.overhead + 64 :]

    def body_span(self, offset, size):
        begin, end = super().body_span(offset, size)
        return begin + (size > self.overhead + 64), end
