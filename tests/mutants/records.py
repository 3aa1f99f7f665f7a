"""Faults in record types."""

from __future__ import annotations

import struct  # noqa: F401 - the tables use it
import time  # noqa: F401 - the tables use it
from itertools import count as numbers  # noqa: F401 - for the mutant counts-its-records

import attrs
from attrs.validators import ge, le

from acme_audit_record import plugin as audit
from acme_audit_record.record import AuditRecord
from msgstore.contract import Capability, RecordError, RecordField, RecordTypeDescriptor  # noqa: F401 - the tables use it
from msgstore_checksum_record import plugin as checksum
from msgstore_checksum_record.record import _BODY_AT, ChecksumRecord
from mutants import add_mutants

(CHECKSUM,) = checksum.msgstore_record_types()


def added(ids, bodies, encode):
    data, sizes = b"", []
    for msg_id, body in zip(ids, bodies, strict=True):
        record, size = encode([msg_id], [body])
        data, sizes = data + record, sizes + size
    return data, sizes


add_mutants(CHECKSUM, ChecksumRecord, r"""
check-always-fine: a scan finds every record sound
    check > None
decode-does-not-check: a read ignores the checksum
    decode: raise RecordError(MISMATCH) => pass
decode-raises-value-error: a damaged record makes a read raise another error
    decode: raise RecordError(MISMATCH) => raise ValueError(MISMATCH)
sound-places: a place where a record was sound is not checked again
    check > None if (offset, size) in self.__dict__.setdefault("sound", set()) else _ or self.sound.add((offset, size))
overhead-too-small: the overhead leaves out the checksum
    overhead = _BODY_AT - 4
body-span-too-early: the body begins at the checksum
    body_span: offset + _BODY_AT => offset + _CRC_AT
byte-of-its-own: it writes its assigned byte, whatever it is bound to
    __init__: context.byte => 4
check-ignores-the-offset: it checks the record at the beginning of the buffer
    check > old(data, 64, int.from_bytes(data[65:69])) if data[:4] == b"RSQS" else _
encode-adds-bytes: the time of encode is quadratic in the number of records
    encode > added(ids, bodies, old)
check-copies-the-rest: the time of a scan is quadratic, because check copies the rest of the segment
    check > (data[offset:], _)[1]
checksum-goes-on: the checksum goes on from one record to the next
    encode: map(crc32c, heads) => [crc32c(head, before) for before, head in enumerate(heads)]
checksums-by-id: records of one id in a batch have the checksum of the last
    encode: zip(heads, sums, bodies, strict=True) => zip(heads, map(dict(zip(ids, sums)).get, ids), bodies, strict=True)
counts-its-records: each record has a number, and a new object begins with 0
    overhead = _BODY_AT + 8
    encode > old(ids, [next(self.__dict__.setdefault("number", numbers())).to_bytes(8) + body for body in bodies])
    decode > _[8:]
    body_span > (_[0] + 8, _[1])
frames-differ: it claims FRAMED, and writes a byte in front of a body of more than 64
    encode > old(ids, [b"\0" * (len(body) > 64) + body for body in bodies])
    decode > _[len(record) > _BODY_AT + 64 :]
    body_span > (_[0] + (size > _BODY_AT + 64), _[1])
empty-is-unchecked: a scan does not check records with an empty body
    check > None if size == _BODY_AT else _
two-bytes-are-full: a body of 65536 bytes is lost
    decode > _[: len(_) % 2**16 or None if len(_) != 2**16 else 0]
""")  # fmt: skip


class Prefixed(ChecksumRecord):
    """A sound record type with some bytes before each body."""

    prefix_size = 8
    overhead = _BODY_AT + prefix_size

    def prefix(self):
        return bytes(self.prefix_size)

    def encode(self, ids, bodies):
        return super().encode(ids, [self.prefix() + body for body in bodies])

    def decode(self, record):
        return super().decode(record)[self.prefix_size :]

    def body_span(self, offset, size):
        begin, end = super().body_span(offset, size)
        return begin + self.prefix_size, end


add_mutants(CHECKSUM, Prefixed, r"""
unsigned-time: a time before each body is read as an unsigned number, which does not fit into 64 bits if it is damaged
    check > None
    fields = lambda self, record: struct.unpack_from(">Q", record, _BODY_AT)
never-the-same-time: an object writes no time twice
    prefix = lambda self: next(self.__dict__.setdefault("times", numbers(time.time_ns()))).to_bytes(8)
    fields = lambda self, record: struct.unpack_from(">q", record, _BODY_AT)
milliseconds: a time before each body is in milliseconds
    prefix = lambda self: (time.time_ns() // 10**6).to_bytes(8)
    fields = lambda self, record: struct.unpack_from(">q", record, _BODY_AT)
""", capabilities=CHECKSUM.capabilities | {Capability.FIELDS}, fields=(RecordField("time", "time"),))  # fmt: skip

add_mutants(CHECKSUM, ChecksumRecord, r"""
number-of-any-size: a number of any size in a body is a field
    fields = lambda self, record: (int(record[_BODY_AT:]) if record[_BODY_AT:].isdigit() else None,)
""", capabilities=CHECKSUM.capabilities | {Capability.FIELDS}, fields=(RecordField("number", "int"),))  # fmt: skip

add_mutants(CHECKSUM, Prefixed, r"""
text-of-any-bytes: a text before each body is decoded, whatever its bytes are
    fields = lambda self, record: (record[_BODY_AT : _BODY_AT + 8].decode(),)
text-with-surrogates: a text before each body has surrogates where its bytes are no UTF-8
    decode = lambda self, record: record[_BODY_AT + 8 :]
    check > None
    fields = lambda self, record: (record[_BODY_AT : _BODY_AT + 8].decode(errors="surrogateescape"),)
""", capabilities=CHECKSUM.capabilities | {Capability.FIELDS}, fields=(RecordField("text", "text"),))  # fmt: skip

add_mutants(audit.msgstore_record_types()[0], AuditRecord, r"""
seal-in-check: a scan, and not only a read, finds damage in records of another option
    check > _ or ("seal_mismatch" if self._actor and self._actor not in data[offset : offset + size] else None)
actor-of-the-last: all objects have the option of the last one that was made
    __init__: self._actor = => type(self)._actor =
actor-is-cut: a text that its class accepts is cut within a character
    __init__: context.options.actor.encode() => context.options.actor.encode()[:17]
local-time: a record has the local time
    encode: time.time_ns() => time.time_ns() + (time.localtime(time.time()).tm_gmtoff or 0) * 10**9
""")  # fmt: skip


@attrs.frozen
class LevelOptions:
    level: int = attrs.field(default=-1, validator=[ge(-1), le(127)])


class Level(Prefixed):
    """A sound record type with an option that is a field."""

    prefix_size = 1
    overhead = _BODY_AT + prefix_size

    def __init__(self, context):
        super().__init__(context)
        self._level = context.options.level + 1

    def prefix(self):
        return bytes([self._level])

    def fields(self, record):
        return (record[_BODY_AT] - 1 if record[_BODY_AT] else None,)


add_mutants(
    RecordTypeDescriptor(
        name="level", contract=(1, 0), factory="mutants.records:Level", format="v2", summary="a level", options=LevelOptions,
        capabilities=[Capability.FIELDS, Capability.FRAMED], fields=(RecordField("level", "int"),),
    ),
    Level, r"""
level-zero: a field that is 0 is taken for none
    fields > (_[0] or None,)
level-too-high: an option that its class accepts cannot be written
    __init__ > self.__dict__.update(_level=2 * context.options.level + 2)
    fields > tuple(value and value // 2 for value in _)
level-is-bounded: an option that its class accepts is written as another
    __init__ > self.__dict__.update(_level=min(self._level, 100))
""")  # fmt: skip
