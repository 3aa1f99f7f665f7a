"""Bytes that are written, bindings, gaps, scans of any bytes, and segments that a broker wrote.

The conformance kit tests what holds for every format, crashes while gaps are filled included.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing.mutations import Member, mutated
from msgstore.contract import (
    BoundRecord,
    Damage,
    FormatContext,
    GapFill,
    NoOptions,
    RecordContext,
    RecordError,
    ScanEnd,
    SegmentScan,
)
from msgstore_format_v2.format import SegmentFormatV2
from msgstore_format_v2.message import MessageRecord

V2 = SegmentFormatV2(FormatContext(NoOptions()))
HEADER = b"RSQS\x02" + bytes(59)
A, B = b"i" * 16, b"j" * 16


class Fragile(MessageRecord):
    """A third party's record: the bytes of a MESSAGE, damaged if the body begins with ``!``."""

    def check(self, data, offset, size):
        return "exclaimed" if size > 21 and data[offset + 21] == ord("!") else None

    def decode(self, record):
        if self.check(record, 0, len(record)):
            raise RecordError("exclaimed")
        return super().decode(record)


def bound(name: str, byte: int) -> BoundRecord:
    return BoundRecord(name, byte, Fragile(RecordContext(NoOptions(), byte)))


FRAGILE = SegmentFormatV2(FormatContext(NoOptions(), (bound("fragile", 200),), "fragile"))


def message(msg_id: bytes, body: bytes, kind: int = 3) -> bytes:
    return struct.pack(">BI16s", kind, 21 + len(body), msg_id) + body


def by_the_book(data: bytes) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]], ScanEnd]:
    """The rules of the format once more, one after the other: (type, offset, size) of messages, holes, end."""
    messages: list[tuple[int, int, int]] = []
    holes: list[tuple[int, int]] = []
    offset, after_hole = 64, False
    while offset < len(data):
        kind, left = data[offset], len(data) - offset
        if kind not in (1, 2, 3):
            return messages, holes, ScanEnd("corrupt", offset, "unrecognised_record_type")
        if kind in (1, 2) and after_hole:
            return messages, holes, ScanEnd("corrupt", offset, "hole_after_hole")
        if kind == 1:
            size = 0
            while size < left and data[offset + size] == 1:
                size += 1
            if size >= 5:
                return messages, holes, ScanEnd("corrupt", offset, "small_hole_run_too_long")
        else:
            if left < 5:
                return messages, holes, ScanEnd("torn", offset)
            size = int.from_bytes(data[offset + 1 : offset + 5], "big")
            if kind == 2 and size < 5:
                return messages, holes, ScanEnd("corrupt", offset, "invalid_hole_size")
            if kind == 3 and size < 21:
                return messages, holes, ScanEnd("corrupt", offset, "invalid_message_size")
            if size > left:
                return messages, holes, ScanEnd("torn", offset)
        if kind == 3:
            messages.append((3, offset, size))
        else:
            holes.append((offset, size))
        after_hole = kind != 3
        offset += size
    return messages, holes, ScanEnd("clean", offset)


def check_against_the_book(data: bytes) -> None:
    scan = V2.scan(data)
    found = sorted((kind, at, size) for columns in (scan.records, scan.duplicates) for _, at, size, kind in columns.rows())
    assert (found, list(zip(scan.hole_offsets, scan.hole_sizes, strict=True)), scan.end) == by_the_book(data)


bodies = st.binary(max_size=60)
ids = st.sampled_from([b"a" * 16, b"b" * 16, b"\x03" * 16]) | st.binary(min_size=16, max_size=16)
pieces = st.one_of(
    st.builds(message, ids, bodies),
    st.integers(5, 40).map(lambda size: struct.pack(">BI", 2, size) + b"\x03" * (size - 5)),
    st.integers(1, 6).map(lambda size: b"\x01" * size),
    st.builds(struct.pack, st.just(">BI"), st.integers(0, 5), st.integers(0, 30)),
    st.binary(max_size=8),
)
messages = st.lists(st.builds(message, ids, bodies), max_size=20).map(b"".join)


@settings(database=None, max_examples=2 * settings.default.max_examples)
@given(
    st.lists(pieces, max_size=30).map(b"".join)
    | st.builds(mutated, st.builds(Random, st.integers(0, 2**32)), st.builds(Member, messages)),
    st.integers(0, 30),
)
def test_scan_of_any_records_keeps_the_rules(records, cut):
    data = HEADER + records
    check_against_the_book(data)
    check_against_the_book(data[: max(64, len(data) - cut)])


def test_encode_writes_documented_bytes():
    for form, kind in ((V2, 3), (FRAGILE, 200)):
        assert form.encode([A], [b"body"]) == (message(A, b"body", kind), [25])
        assert form.scan(HEADER + message(A, b"body", kind)).records.types == bytes([kind])
        assert (form.header, form.max_body) == (HEADER, 2**32 - 22)


def test_many_batches_and_copies_across_them():
    names = [struct.pack(">QQ", 7, at) for at in range(40_000)]
    data = HEADER + V2.encode(names, [b"x" * 43] * 40_000)[0]
    scan = V2.scan(data + V2.encode(names[5:7], [b"y", b"z"])[0])
    assert scan.records.id_list() == names
    assert list(scan.records.offsets) == list(range(64, len(data), 64))
    assert list(scan.duplicates.rows()) == [(names[5], len(data), 22, 3), (names[6], len(data) + 22, 22, 3)]
    assert V2.scan(data, start=64 + 64 * 30_000).records.id_list() == names[30_000:]


def test_wrong_header_is_told_and_records_are_read():
    for header, state in ((HEADER, "ok"), (b"RSQT" + HEADER[4:], "bad_magic"), (b"RSQS\x03" + HEADER[5:], "bad_version")):
        scan = V2.scan(header + message(A, b"body"))
        assert (scan.header, len(scan.records), scan.end.state) == (state, 1, "clean")


def test_a_large_record_is_stepped_over():
    """One message of 64 MiB: neither it nor a part of it is copied, so the scan takes no longer than that of a small one."""
    data = HEADER + message(A, bytes(2**26))
    tracemalloc.start()
    try:
        found = V2.scan(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.records), found.end.state) == (1, "clean")
    assert peak < 2**20


def test_scan_continues_after_damage():
    data, sizes = FRAGILE.encode([A, B, A], [b"!bad", b"good", b"good"])
    scan = FRAGILE.scan(HEADER + data)
    assert scan.damage == [Damage(64, sizes[0], "exclaimed")]
    assert (scan.records.id_list(), len(scan.duplicates), scan.end.state) == ([B, A], 0, "clean")


RECORD = message(A, b"body")


@pytest.mark.parametrize(
    ("form", "bad", "reason"),
    [
        *((V2, bad, "size_mismatch") for bad in (b"", RECORD[:20], b"\x03" + bytes(20), RECORD[:-1], RECORD * 2)),
        (FRAGILE, message(A, b"!", 200)[:-1], "size_mismatch"),
        *((V2, kind + RECORD[1:], "unrecognised_record_type") for kind in (b"\x00", b"\x02", b"\xc8")),
        (V2, message(B, b"body"), "id_mismatch"),
        (FRAGILE, message(A, b"!", 200), "exclaimed"),
    ],
)
def test_decode_refuses_what_is_not_the_record(form, bad, reason):
    with pytest.raises(RecordError) as raised:
        form.decode(A, bad)
    assert raised.value.reason == reason
    assert FRAGILE.decode(A, RECORD) == b"body"


def test_record_below_the_overhead_of_its_type_is_explained():
    binding = bound("fragile", 200)
    binding.record.overhead = 101
    form = SegmentFormatV2(FormatContext(NoOptions(), (binding,), "fragile"))
    with pytest.raises(
        RecordError, match="97 bytes, and a record with type byte 200 has at least 101: another version"
    ) as error:
        form.decode(A, message(A, bytes(76), 200))
    assert error.value.reason == "size_mismatch"


@pytest.mark.parametrize(
    ("records", "record"),
    [
        ((), "checksum"),
        *(((bound(name, byte),), "message") for name, byte in (("other", 3), ("message", 200), ("other", 0), ("other", 127))),
        ((bound("one", 200), bound("two", 200)), "message"),
    ],
)
def test_impossible_binding_is_refused(records, record):
    with pytest.raises(ValueError, match="type byte"):
        SegmentFormatV2(FormatContext(NoOptions(), records, record))


@pytest.mark.parametrize(
    ("tail", "start", "found"),
    [
        ([0, 1], 64, 69),
        ([0, 1, 2, 3, 4, 5, 6, 7, b"\0\0"], 64, 69),
        ([0, 1, 2, 3, 4, 5, 6, b"\0\0"], 64, None),
        ([0, 1, 2, 3, 4, 5, b"\x01", 7, b"\0"], 64, 69),
        ([0, 1], 70, 69 + 25),
        ([0, 1], 70 + 25, None),
    ],
)
def test_chain_holds_eight_records_or_to_end(tail, start, found):
    data = HEADER + b"\x01\x02\x00\x00\x00"
    data += b"".join(message(bytes([100 + one]) * 16, b"body") if isinstance(one, int) else one for one in tail)
    assert V2.find_chain(data, start) == found


def test_room():
    """A seal, five bytes, lies within a sector."""
    assert (V2.gap_room(64, 20), V2.gap_room(64, 21)) == (0, 21)
    assert [V2.gap_room(offset, 100) for offset in range(506, 514)] == [100, 100, 0, 0, 0, 0, 100, 100]
    assert V2.fill_gap(64, 1000, []) == GapFill()
    with pytest.raises(ValueError, match="room for 0"):
        V2.fill_gap(510, 100, [RECORD])


@pytest.mark.parametrize(("left", "hole"), [(0, b""), (3, b"\1\1\1"), (40, b"\2\0\0\0\x28")])
def test_gap_is_a_hole_until_its_seal(left, hole):
    records = [RECORD, message(B, bytes(600))]
    moved = b"".join(records)
    assert V2.fill_gap(64, len(moved) + left, records) == GapFill(
        [(64, struct.pack(">BI", 2, len(moved) + left))], [(69, moved[5:] + hole)], [(64, moved[:5])]
    )


# -- segments that a broker wrote, and every way of breaking one that its scanner was shown -------------------------------

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "msg-store"


def load(name: str) -> Any:
    return json.loads((DATA / name / "manifest.json").read_text())


SEGMENTS = [
    pytest.param(DATA / name / "store" / segment["name"], segment, id=f"{name}-{segment['name']}")
    for name in ("mixed_upgrade", "v2_clean", "v2_compacted", "v2_dirty", "v2_dirty_torn")
    for segment in load(name)["segments"]
    if segment["format"] == "v2"
]
CASES = load("v2_corrupt")["cases"]
BASELINE = CASES[0]["scan"]["records"]
"""The five records of every case; what is broken was put in behind the third."""


def rows(scan: SegmentScan) -> list[tuple[str, int, int]]:
    return [(msg_id.hex(), offset, size) for msg_id, offset, size, _ in scan.records.rows()]


def expected_rows(records: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(record["id"], record["offset"], record["total_size"]) for record in records]


def check_layout(scan: SegmentScan, layout: dict[str, Any]) -> None:
    holes = list(zip(scan.hole_offsets, scan.hole_sizes, strict=True))
    assert [hole for hole in holes if hole[1] >= 5] == [(hole["offset"], hole["size"]) for hole in layout["holes"]]
    assert Counter(str(size) for _, size in holes if size < 5) == Counter(layout["small_hole_runs"])
    assert len(scan.records) + len(scan.duplicates) == layout["messages"]
    assert scan.end.offset == layout["end_offset"]
    assert scan.end.state == ("torn" if "stopped_with_bytes_left" in layout else "clean")


@pytest.mark.parametrize(("path", "segment"), SEGMENTS)
def test_manifest_agrees_record_by_record(path, segment):
    scan = V2.scan(path.read_bytes())
    assert rows(scan) == expected_rows(segment["records"])
    assert (scan.header, set(scan.records.types) <= {3}, scan.damage) == ("ok", True, [])
    check_layout(scan, segment["layout"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in CASES])
def test_broken_segments_end_where_the_broker_ends(case):
    """And the records behind are found."""
    data = (DATA / "v2_corrupt" / case["path"]).read_bytes()
    expected = case["scan"]
    error = expected.get("scan_error")
    scan = V2.scan(data)
    if error and error["reason"] == "invalid_message_body":
        assert scan.end.state == "clean"
        size = scan.records.sizes[list(scan.records.offsets).index(error["offset"])]
        bad = data[slice(*V2.body_span(data, error["offset"], size))]
        scan = V2.scan(data, check_body=lambda _, body: body != bad)
    if error:
        assert scan.end == ScanEnd("corrupt", error["offset"], error["reason"])
        assert rows(scan) == expected_rows(BASELINE[:3])
        found = V2.find_chain(data, error["offset"] + 1)
        assert found is not None
        assert V2.scan(data, start=found).records.ids == bytes.fromhex("".join(record["id"] for record in BASELINE[3:]))
    elif "short_header" in expected["layout"]:
        assert (scan.header, scan.end) == (None, ScanEnd("torn", 0))
    else:
        assert rows(scan) == expected_rows(expected["records"])
        check_layout(scan, expected["layout"])
    if case["case"] == "hole_after_small_hole":
        assert (list(scan.hole_offsets), list(scan.hole_sizes)) == ([478], [2])
