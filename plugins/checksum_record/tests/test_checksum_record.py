"""The bytes of MESSAGE_WITH_CHECKSUM. The conformance kit tests it inside segments."""

from __future__ import annotations

import struct

import pytest

from msgstore.contract import NoOptions, RecordContext, RecordError
from msgstore_checksum_record import plugin

(DESCRIPTOR,) = plugin.msgstore_record_types()
RECORD = DESCRIPTOR.load_factory()(RecordContext(NoOptions(), 4))
ID = b"a" * 16


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit: reflected polynomial 0x1EDC6F41 (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_encode_writes_documented_bytes():
    assert crc32c(b"123456789") == 0xE3069283
    head = b"\x04\x00\x00\x00\x1d" + ID
    data, sizes = RECORD.encode([ID], [b"body"])
    assert data == head + struct.pack(">I", crc32c(head + b"body")) + b"body"
    assert sizes == [29]
    assert RECORD.body_span(100, 29) == (125, 129)
    assert (DESCRIPTOR.name, DESCRIPTOR.format, DESCRIPTOR.assigned_byte, RECORD.overhead) == ("checksum", "v2", 4, 25)


@pytest.mark.parametrize("body", [b"", b"\0", b"some body"])
def test_every_flipped_bit_is_noticed(body):
    record = RECORD.encode([ID], [body])[0]
    assert RECORD.check(b"xx" + record, 2, len(record)) is None
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        assert RECORD.check(b"xx" + flipped, 2, len(record)) == "checksum_mismatch"
        with pytest.raises(RecordError, match="checksum_mismatch"):
            RECORD.decode(bytes(flipped))
