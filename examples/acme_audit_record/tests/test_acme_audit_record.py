"""Tests that are specific to audit records. msgstore's conformance kit tests the requirements of every record type:

pytest --pyargs msgstore.testing.suite --msgstore-dist acme-audit-record
"""

from __future__ import annotations

import time
import zlib

import pytest

from acme_audit_record.plugin import AuditOptions
from acme_audit_record.record import AuditRecord
from msgstore.contract import RecordContext, RecordError

ID = bytes(range(16))


def audit(actor: str = "billing") -> AuditRecord:
    return AuditRecord(RecordContext(AuditOptions(actor), 200))


def test_encode_writes_documented_layout():
    before = time.time_ns()
    record, sizes = audit().encode([ID], [b"hello"])
    assert sizes == [len(record)] == [65 + 5]
    assert record[:21] == b"\xc8" + (70).to_bytes(4) + ID
    assert int.from_bytes(record[21:25]) == zlib.crc32(record[:21] + record[25:])
    assert before <= int.from_bytes(record[25:33]) <= time.time_ns()
    assert record[33:65] == b"billing".ljust(32, b"\0")
    assert record[65:] == b"hello"


def test_check_and_decode_detect_every_flipped_bit():
    record, _ = audit().encode([ID], [b"hello"])
    for bit in range(8 * len(record)):
        flipped = (int.from_bytes(record) ^ 1 << bit).to_bytes(len(record))
        assert audit().check(flipped, 0, len(flipped)) == "checksum_mismatch"
        with pytest.raises(RecordError, match="checksum_mismatch"):
            audit().decode(flipped)


def test_fields_come_from_record_not_from_options():
    record, _ = audit("shop").encode([ID], [b""])
    when, actor = audit("billing").fields(record)
    assert actor == "shop"
    assert abs(time.time_ns() - when) < 60e9


@pytest.mark.parametrize("actor", ["x" * 33, "ü" * 17, "a\nb", "\0", "\ud800"])
def test_options_reject_invalid_actor(actor):
    with pytest.raises(ValueError, match="actor: "):
        AuditOptions(actor)
