"""Encoding, decoding, and scans of bytes that nobody wrote. ``tests/test_fuzz.py`` measures the time of hostile ones."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msgstore.contract import FormatContext, NoOptions, RecordError, ScanEnd, SegmentFormat, SegmentScan
from msgstore_format_v1.format import SegmentFormatV1

V1: SegmentFormat = SegmentFormatV1(FormatContext(NoOptions()))
A, B = b"a" * 16, b"b" * 16

Spans = list[tuple[int, int]]
"""Offsets and sizes."""

ids = st.binary(min_size=16, max_size=16)


def record(msg_id: bytes, body: bytes) -> bytes:
    return struct.pack(">Q", 16 + len(body)) + msg_id + body + b"\xff"


def seems(data: bytes, at: int) -> int:
    """Size of the record that seems to be at ``at``; 0 if none."""
    size = int.from_bytes(data[at : at + 8], "big") + 9
    return size if size >= 25 and at + size <= len(data) and data[at + size - 1] == 255 else 0


def stands(data: bytes, at: int) -> bool:
    """A record seems to be at ``at``, and behind it the file ends or the next size begins."""
    size = seems(data, at)
    return size > 0 and not any(data[at + size : at + size + 4])


def by_the_book(data: bytes) -> tuple[Spans, Spans, ScanEnd]:
    """The rules of the format once more, byte by byte: records (copies too), holes, end."""
    records: Spans = []
    holes: Spans = []
    end = at = 0
    while at < len(data):
        if not seems(data, at):
            at += 1
            continue
        if not stands(data, at):
            at = next((later for later in range(at + 1, at + 8) if stands(data, later)), at)
        if at > end:
            holes.append((end, at - end))
        records.append((at, seems(data, at)))
        at = end = at + seems(data, at)
    if any(data[end:]):
        return records, holes, ScanEnd("torn", end)
    if end < len(data):
        holes.append((end, len(data) - end))
    return records, holes, ScanEnd("clean", len(data))


def check_against_the_book(data: bytes) -> SegmentScan:
    scan = V1.scan(data)
    records, holes, end = by_the_book(data)
    found = sorted((at, size) for columns in (scan.records, scan.duplicates) for _, at, size, _ in columns.rows())
    assert found == records
    assert list(zip(scan.hole_offsets, scan.hole_sizes, strict=True)) == holes
    assert scan.end == end
    assert len(set(scan.records.id_list())) == len(scan.records)
    assert set(scan.duplicates.id_list()) <= set(scan.records.id_list())
    return scan


pieces = st.one_of(
    st.builds(record, st.sampled_from([A, B]) | ids, st.binary(max_size=400)),
    st.builds(record, ids, st.integers(200, 5000).map(lambda size: b"\x01\xff" * (size // 2))),
    st.integers(1, 40).map(bytes),
    st.integers(1, 40).map(lambda size: b"\xff" * size),
    st.integers(0, 3000).map(lambda size: size.to_bytes(8, "big")),
    st.binary(max_size=8),
)


encoded = st.lists(st.tuples(ids, st.binary(max_size=60)), max_size=15).map(
    lambda pairs: V1.encode([i for i, _ in pairs], [b for _, b in pairs])[0]
)
changes = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4)
sparse = st.lists(st.sampled_from([0, 0, 0, 16, 17, 255]), max_size=200).map(bytes)


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    found = bytearray(data)
    for at, byte in changes if data else ():
        found[at % len(data)] = byte
    return bytes(found)


@settings(database=None, max_examples=3 * settings.default.max_examples)
@given(
    st.lists(pieces, max_size=25).map(b"".join) | st.builds(changed, encoded, changes) | st.binary(max_size=200) | sparse,
    st.integers(0, 40),
    st.integers(0, 210),
)
def test_scan_of_any_bytes_keeps_the_rules(data, cut, start):
    check_against_the_book(data)
    check_against_the_book(data[: max(0, len(data) - cut)])
    scan = V1.scan(data, start=start, check_body=lambda _, body: len(body) % 2 == 0)
    assert scan.end.state in ("clean", "torn")
    assert V1.find_chain(data, start) is None


def test_encode_writes_documented_bytes():
    assert V1.encode([A, B], [b"body", b""]) == (record(A, b"body") + record(B, b""), [29, 25])


def test_random_bodies_behind_holes_are_found():
    """What the phantom rule is for: without it some of these records are read up to 7 bytes early, and lost."""
    rng = random.Random(20)
    count, lost = 0, 0
    for _ in range(8):
        parts: list[bytes] = []
        expected: list[bytes] = []
        for _ in range(500):
            parts.append(bytes(rng.randrange(1, 2000)))
            for _ in range(rng.randrange(1, 3)):
                expected.append(rng.randbytes(16))
                parts.append(record(expected[-1], rng.randbytes(rng.randrange(4 << 10, 64 << 10))))
        scan = V1.scan(b"".join(parts))
        assert scan.end.state == "clean"
        count += len(expected)
        lost += len(set(expected) ^ set(scan.records.id_list()))
    assert count > 5000
    assert lost == 0


def test_a_phantom_two_bytes_early_gives_way():
    """Bodies of 1 MiB and more: the first byte of the size, read as the whole of it, ends at the first of the body."""
    data = bytes(50) + record(A, b"\xff" + b"x" * (0x123456 - 17))
    scan = V1.scan(data)
    assert list(scan.records.rows()) == [(A, 50, len(data) - 50, 0)]
    assert check_against_the_book(data) == scan


def test_many_batches_copies_and_holes_are_told():
    count = 30_000
    names = [struct.pack(">QQ", 7, at) for at in range(count)]
    data = bytearray(V1.encode(names, [b"x" * 75] * count)[0])
    size = 100
    for at in range(0, count, 3):
        data[size * at : size * at + size] = bytes(size)
    alive = [name for at, name in enumerate(names) if at % 3]
    data += record(alive[5], b"again") + bytes(3)
    scan = V1.scan(bytes(data))
    assert scan.records.id_list() == alive
    assert list(scan.duplicates.rows()) == [(alive[5], size * count, 30, 0)]
    assert list(scan.hole_offsets) == [*range(0, size * count, 3 * size), len(data) - 3]
    assert scan.end == ScanEnd("clean", len(data))
    start = 20_001 * size
    behind = [name for at, name in enumerate(names) if at % 3 and at > 20_000]
    assert V1.scan(bytes(data), start=start).records.id_list() == [*behind, alive[5]]


def test_scan_tells_clean_and_torn_ends():
    one = record(A, b"body")
    assert V1.scan(b"") == SegmentScan()
    assert V1.scan(bytes(30)).end == ScanEnd("clean", 30)
    assert V1.scan(one + bytes(10)).end == ScanEnd("clean", len(one) + 10)
    assert list(V1.scan(one + bytes(10)).hole_sizes) == [10]
    torn = V1.scan(one + bytes(10) + record(B, b"body")[:-1])
    assert torn.end == ScanEnd("torn", len(one))
    assert not torn.hole_sizes
    assert V1.scan(one, start=100).end == ScanEnd("torn", 100)


def test_invalid_body_is_damage_and_reading_goes_on():
    data = record(A, b"bad") + record(B, b"good") + record(A, b"good")
    scan = V1.scan(data, check_body=lambda _, body: body == b"good")
    assert [(d.offset, d.size, d.reason) for d in scan.damage] == [(0, 28, "invalid_message_body")]
    assert scan.records.id_list() == [B, A]
    assert not scan.duplicates.ids
    assert scan.end.state == "clean"


def test_decode_refuses_what_is_not_the_record():
    good = record(A, b"body")
    for reason, bad in [
        ("size_mismatch", b""),
        ("size_mismatch", good[:-1]),
        ("size_mismatch", good + b"\xff"),
        ("id_mismatch", record(B, b"body")),
        ("end_mark_missing", good[:-1] + b"\0"),
    ]:
        with pytest.raises(RecordError) as raised:
            V1.decode(A, bad)
        assert raised.value.reason == reason
