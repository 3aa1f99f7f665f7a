"""What is particular to audit records. What every record type has to keep is tested by msgstore's conformance kit:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-audit-record
"""

from __future__ import annotations

import time
import zlib

import pytest

from acme_audit_record.plugin import AuditOptions, msgstore_record_types
from acme_audit_record.record import AuditRecord
from msgstore.contract import RecordContext, RecordError

ID = bytes(range(16))


def audit(actor: str = "billing") -> AuditRecord:
    return AuditRecord(RecordContext(AuditOptions(actor), 200))


def test_a_record_byte_by_byte():
    before = time.time_ns()
    record, sizes = audit().encode([ID], [b"hello"])
    assert sizes == [len(record)] == [65 + 5]
    assert record[:21] == b"\xc8" + (70).to_bytes(4) + ID
    assert int.from_bytes(record[21:25]) == zlib.crc32(record[:21] + record[25:])
    assert before <= int.from_bytes(record[25:33]) <= time.time_ns()
    assert record[33:65] == b"billing".ljust(32, b"\0")
    assert record[65:] == b"hello"


def test_every_flipped_bit_is_noticed():
    record, _ = audit().encode([ID], [b"hello"])
    for bit in range(8 * len(record)):
        flipped = (int.from_bytes(record) ^ 1 << bit).to_bytes(len(record))
        assert audit().check(flipped, 0, len(flipped)) == "checksum_mismatch"
        with pytest.raises(RecordError, match="checksum_mismatch"):
            audit().decode(flipped)


def test_fields_are_the_records_own():
    record, _ = audit("shop").encode([ID], [b""])
    when, actor = audit("billing").fields(record)
    assert actor == "shop"
    assert abs(time.time_ns() - when) < 60e9


def test_records_stand_anywhere_in_a_segment():
    data, sizes = audit().encode([ID, ID[::-1]], [b"one", b"two"])
    begin, end = audit().body_span(sizes[0], sizes[1])
    assert data[begin:end] == b"two"
    assert audit().check(data, sizes[0], sizes[1]) is None


@pytest.mark.parametrize("actor", ["x" * 33, "ü" * 17, "a\nb", "\0", "\ud800"])
def test_actors_that_there_cannot_be(actor):
    with pytest.raises(ValueError, match="actor: "):
        AuditOptions(actor)


def test_the_descriptor_leads_to_the_record_type():
    (descriptor,) = msgstore_record_types()
    assert descriptor.load_factory() is AuditRecord
    assert [field.name for field in descriptor.fields] == ["time", "actor"]
