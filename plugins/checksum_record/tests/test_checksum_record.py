"""The bytes of MESSAGE_WITH_CHECKSUM, by themselves and inside segments of format v2."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msgstore.contract import BoundRecord, FormatContext, NoOptions, RecordContext, RecordError, RecordType
from msgstore_checksum_record import plugin
from msgstore_checksum_record.record import ChecksumRecord

RECORD: RecordType = ChecksumRecord(RecordContext(NoOptions(), 4))
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16

pairs = st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=80)), max_size=8)


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit: reflected polynomial 0x1EDC6F41 (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_bytes() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    head = b"\x04\x00\x00\x00\x1d" + A
    data, sizes = RECORD.encode([A], [b"body"])
    assert data == head + struct.pack(">I", crc32c(head + b"body")) + b"body"
    assert sizes == [29]
    assert RECORD.body_span(100, 29) == (125, 129)


@settings(database=None)
@given(pairs)
def test_decode_and_check_accept_what_encode_wrote(batch: list[tuple[bytes, bytes]]) -> None:
    data, sizes = RECORD.encode([i for i, _ in batch], [b for _, b in batch])
    offset = 0
    for (_, body), size in zip(batch, sizes, strict=True):
        assert RECORD.check(data, offset, size) is None
        assert RECORD.decode(data[offset : offset + size]) == body
        offset += size
    assert offset == len(data)


@pytest.mark.parametrize("body", [b"", b"\0", b"some body"])
def test_every_flipped_bit_is_noticed(body: bytes) -> None:
    record = RECORD.encode([A], [body])[0]
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        assert RECORD.check(b"xx" + flipped, 2, len(record)) == "checksum_mismatch"
        with pytest.raises(RecordError, match="checksum_mismatch"):
            RECORD.decode(bytes(flipped))


def test_segments_report_a_mismatch_and_go_on_behind_it() -> None:
    v2 = pytest.importorskip("msgstore_format_v2.format").SegmentFormatV2
    form = v2(FormatContext(NoOptions(), (BoundRecord("checksum", 4, RECORD),), "checksum"))
    data, sizes = form.encode([A, B, C], [b"first", b"second", b"third"])
    segment = bytearray(form.header + data + v2(FormatContext(NoOptions())).encode([b"m" * 16], [b"plain"])[0])
    at = 64 + sizes[0]
    assert form.scan(bytes(segment)).records.types == b"\4\4\4\3"
    segment[at + sizes[1] - 1] ^= 1
    scan = form.scan(bytes(segment))
    assert [(d.offset, d.size, d.reason) for d in scan.damage] == [(at, sizes[1], "checksum_mismatch")]
    assert scan.records.id_list() == [A, C, b"m" * 16]
    assert scan.end.state == "clean"
    with pytest.raises(RecordError, match="checksum_mismatch"):
        form.decode(B, bytes(segment[at : at + sizes[1]]))
    assert form.max_body == 2**32 - 26


def test_descriptor_and_factory_fit() -> None:
    (descriptor,) = plugin.msgstore_record_types()
    assert (descriptor.name, descriptor.format, descriptor.assigned_byte) == ("checksum", "v2", 4)
    assert isinstance(descriptor.load_factory()(RecordContext(NoOptions(), 4)), ChecksumRecord)
