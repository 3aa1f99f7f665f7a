"""Bytes that are written, scans of any bytes, and segments that brokers wrote.

The conformance kit tests what holds for every format. ``tests/test_fuzz.py`` measures the time of hostile bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing.mutations import Member, mutated
from msgstore.contract import Damage, FormatContext, NoOptions, RecordError, ScanEnd, SegmentFormat
from msgstore_format_v1.format import SegmentFormatV1

V1: SegmentFormat = SegmentFormatV1(FormatContext(NoOptions()))
A, B = b"a" * 16, b"b" * 16
Spans = list[tuple[int, int]]
"""Offsets and sizes."""


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


def check_against_the_book(data: bytes) -> None:
    scan = V1.scan(data)
    found = sorted((at, size) for columns in (scan.records, scan.duplicates) for _, at, size, _ in columns.rows())
    between = [*zip(scan.hole_offsets, scan.hole_sizes, strict=True), *((spot.offset, spot.size) for spot in scan.damage)]
    assert (found, sorted(between), scan.end) == by_the_book(data)


ids = st.binary(min_size=16, max_size=16)
pieces = st.one_of(
    st.builds(record, st.sampled_from([A, B]) | ids, st.binary(max_size=400)),
    st.builds(record, ids, st.integers(200, 5000).map(lambda size: b"\x01\xff" * (size // 2))),
    st.integers(1, 40).map(bytes),
    st.integers(1, 40).map(lambda size: b"\xff" * size),
    st.integers(0, 3000).map(lambda size: size.to_bytes(8, "big")),
    st.binary(max_size=8),
)
records = st.lists(st.builds(record, ids, st.binary(max_size=60)), max_size=15).map(b"".join)
sparse = st.lists(st.sampled_from([0, 0, 0, 16, 17, 255]), max_size=200).map(bytes)


@settings(database=None, max_examples=3 * settings.default.max_examples)
@given(
    st.lists(pieces, max_size=25).map(b"".join)
    | st.builds(mutated, st.builds(Random, st.integers(0, 2**32)), st.builds(Member, records))
    | st.binary(max_size=200)
    | sparse,
    st.integers(0, 40),
)
def test_scan_of_any_bytes_keeps_the_rules(data, cut):
    check_against_the_book(data)
    check_against_the_book(data[: max(0, len(data) - cut)])


PHANTOM = bytes(50) + record(A, b"\xff" + b"x" * (0x123456 - 17))
"""The first byte of the size, read as the whole of it, ends at the first byte of the body."""
BATCHES = b"".join(record(struct.pack(">QQ", 7, n), b"x" * 75) if n % 3 else bytes(100) for n in range(12_000))
"""More than one MiB, at which a scan begins a new batch."""


@pytest.mark.parametrize(
    ("data", "records", "holes", "end"),
    [
        (b"", [], [], ("clean", 0)),
        (bytes(30), [], [(0, 30)], ("clean", 30)),
        (record(A, b"body") + bytes(10), [(A, 0, 29)], [(29, 10)], ("clean", 39)),
        (record(A, b"body") + bytes(10) + record(B, b"body")[:-1], [(A, 0, 29)], [], ("torn", 29)),
        (PHANTOM, [(A, 50, len(PHANTOM) - 50)], [(0, 50)], ("clean", len(PHANTOM))),
        (BATCHES + BATCHES[100:200], None, [(n, 100) for n in range(0, 1_200_000, 300)], ("clean", 1_200_100)),
    ],
    ids=["empty", "zeros", "zeros at the end", "torn", "phantom two bytes early", "several batches"],
)
def test_scan_of_known_bytes(data, records, holes, end):
    scan = V1.scan(data)
    assert records is None or [row[:3] for row in scan.records.rows()] == records
    assert list(zip(scan.hole_offsets, scan.hole_sizes, strict=True)) == holes
    assert scan.end == ScanEnd(*end)
    assert len(scan.duplicates) == (records is None)
    check_against_the_book(data)


def test_scan_continues_after_invalid_body():
    data, sizes = V1.encode([A, B, A], [b"bad", b"good", b""])
    assert (data, sizes) == (record(A, b"bad") + record(B, b"good") + record(A, b""), [28, 29, 25])
    scan = V1.scan(data, check_body=lambda _, body: body != b"bad")
    assert scan.damage == [Damage(0, 28, "invalid_message_body")]
    assert (scan.records.id_list(), len(scan.duplicates), scan.end.state) == ([B, A], 0, "clean")
    assert V1.find_chain(data, 0) is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "size_mismatch"),
        (record(A, b"body")[:-1], "size_mismatch"),
        (record(A, b"body") + b"\xff", "size_mismatch"),
        (record(B, b"body"), "id_mismatch"),
        (record(A, b"body")[:-1] + b"\0", "end_mark_missing"),
    ],
)
def test_decode_of_other_bytes_is_refused(bad, reason):
    with pytest.raises(RecordError) as raised:
        V1.decode(A, bad)
    assert raised.value.reason == reason


# -- segments that brokers wrote ------------------------------------------------------------------------------------------

DATA = Path(__file__).resolve().parents[3] / "tests" / "data"
SEGMENTS = [
    pytest.param(DATA / "msg-store" / name / "store" / segment["name"], segment, id=f"{name}-{segment['name']}")
    for name in ("v1_clean", "v1_compacted", "mixed_upgrade")
    for segment in json.loads((DATA / "msg-store" / name / "manifest.json").read_text())["segments"]
    if segment["format"] == "v1"
]


@pytest.mark.parametrize(("path", "segment"), SEGMENTS)
def test_scan_of_real_segment_agrees_with_manifest(path, segment):
    data = path.read_bytes()
    scan = V1.scan(data)
    found = [
        (msg_id.hex(), offset, size, hashlib.sha256(V1.decode(msg_id, data[offset : offset + size])).hexdigest(), kind)
        for msg_id, offset, size, kind in scan.records.rows()
    ]
    assert found == [(one["id"], one["offset"], one["total_size"], one["body_sha256"], 0) for one in segment["records"]]
    gaps = [(gap["offset"], gap["size"]) for gap in segment["layout"]["gaps"]]
    assert list(zip(scan.hole_offsets, scan.hole_sizes, strict=True)) == gaps
    assert (scan.header, scan.end, len(scan.duplicates), scan.damage) == (None, ScanEnd("clean", len(data)), 0, [])
    assert V1.scan(data, check_body=lambda _, body: body[:1] == b"\x83") == scan


def saved_indexes() -> Iterator[Any]:
    """Each file of each store, with what the broker's own index says of it."""
    for dump in sorted((DATA / "rabbitmq-3.10").glob("*/erlang_dump.json")):
        for vhost, tables in json.loads(dump.read_text()).items():
            index = tables.get("msg_store_index_persistent")
            for number in sorted({entry["file"] for entry in index or ()}):
                path = dump.parent / "msg_stores" / "vhosts" / vhost / "msg_store_persistent" / f"{number}.rdq"
                yield pytest.param(path, [entry for entry in index if entry["file"] == number], id=f"{vhost}-{number}")


def test_end_of_dead_record_in_gap_is_no_damage():
    """A broker's compaction leaves it. It may have the first bytes of a term where a record has its body."""
    gap = b"x" * 24 + b"\x83m" + b"y" * 300 + b"\xff"
    scan = V1.scan(record(A, b"moved") + gap + record(B, b"live"))
    assert (len(scan.records), scan.damage, list(scan.hole_sizes)) == (2, [], [len(gap)])


@pytest.mark.parametrize(("byte", "to"), [(0, 9), (7, None), (-1, 0)])
def test_broken_size_or_end_of_brokers_record_is_damage(byte, to):
    """Each record of a real segment, whose size or last byte is wrong in turn, is reported, and the others are found."""
    data = (DATA / "msg-store" / "v1_clean" / "store" / "2.rdq").read_bytes()
    rows = list(V1.scan(data).records.rows())
    for _, at, size, _ in rows[:-1]:
        broken, place = bytearray(data), at + byte if byte >= 0 else at + size - 1
        broken[place] = data[place] ^ 0x40 if to is None else to
        scan = V1.scan(bytes(broken))
        assert [spot.reason for spot in scan.damage] == ["invalid_size"]
        assert scan.damage[0].offset == at
        assert scan.end == ScanEnd("clean", len(data))


@pytest.mark.parametrize(("path", "entries"), list(saved_indexes()))
def test_scan_finds_what_index_of_broker_names(path, entries):
    scan = V1.scan(path.read_bytes())
    found = {msg_id.hex(): (offset, size) for msg_id, offset, size, _ in scan.records.rows()}
    assert {entry["id"]: (entry["offset"], entry["total_size"]) for entry in entries}.items() <= found.items()
    assert scan.end.state == "clean"
    assert not scan.hole_sizes  # RabbitMQ 3.10 combines files: what is dead stays a whole record
