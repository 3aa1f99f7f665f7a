"""Bytes that are written, bindings, scans of any bytes, and segments that a broker wrote.

The conformance kit tests what holds for every format.
"""

from __future__ import annotations

import json
import mmap
import struct
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msgstore.contract import (
    BoundRecord,
    FormatContext,
    NoOptions,
    RecordContext,
    RecordError,
    ScanEnd,
    SegmentFormat,
    SegmentScan,
)
from msgstore_format_v2.format import SegmentFormatV2
from msgstore_format_v2.message import MessageRecord

V2: SegmentFormat = SegmentFormatV2(FormatContext(NoOptions()))
HEADER = b"RSQS\x02" + bytes(59)

ids = st.binary(min_size=16, max_size=16)
bodies = st.binary(max_size=60)


class Fragile(MessageRecord):
    """A third party's record: the bytes of a MESSAGE, damaged if the body begins with ``!``."""

    def check(self, data, offset, size):
        return "exclaimed" if size > 21 and data[offset + 21] == ord("!") else None

    def decode(self, record):
        if self.check(record, 0, len(record)):
            raise RecordError("exclaimed")
        return super().decode(record)


def bound(name: str, byte: int, kind: type[MessageRecord] = Fragile) -> BoundRecord:
    return BoundRecord(name, byte, kind(RecordContext(NoOptions(), byte)))


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


pieces = st.one_of(
    st.builds(message, st.sampled_from([b"a" * 16, b"b" * 16, b"\x03" * 16]) | ids, bodies),
    st.integers(5, 40).map(lambda size: struct.pack(">BI", 2, size) + b"\x03" * (size - 5)),
    st.integers(1, 6).map(lambda size: b"\x01" * size),
    st.builds(struct.pack, st.just(">BI"), st.integers(0, 5), st.integers(0, 30)),
    st.binary(max_size=8),
)


encoded = st.lists(st.tuples(ids, bodies), max_size=20, unique_by=lambda pair: pair[0]).map(
    lambda pairs: V2.encode([i for i, _ in pairs], [b for _, b in pairs])[0]
)
changes = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4)


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    found = bytearray(data)
    for at, byte in changes if data else ():
        found[at % len(data)] = byte
    return bytes(found)


@settings(database=None, max_examples=2 * settings.default.max_examples)
@given(st.lists(pieces, max_size=30).map(b"".join) | st.builds(changed, encoded, changes), st.integers(0, 30))
def test_scan_of_any_records_keeps_the_rules(records, cut):
    data = HEADER + records
    check_against_the_book(data)
    check_against_the_book(data[: max(64, len(data) - cut)])
    chain = V2.find_chain(data, 64)
    assert chain is None or chain >= 64


def test_encode_writes_documented_bytes():
    for form, kind in ((V2, 3), (FRAGILE, 200)):
        assert form.encode([b"i" * 16], [b"body"]) == (message(b"i" * 16, b"body", kind), [25])
        assert form.scan(HEADER + message(b"i" * 16, b"body", kind)).records.types == bytes([kind])
        assert form.max_body == 2**32 - 22


def test_many_batches_and_copies_across_them():
    count = 40_000
    names = [struct.pack(">QQ", 7, at) for at in range(count)]
    data = HEADER + V2.encode(names, [b"x" * 43] * count)[0]
    again = V2.encode(names[5:7], [b"y", b"z"])[0]
    scan = V2.scan(data + again)
    assert scan.records.id_list() == names
    assert all(after - before == 64 for before, after in pairwise(scan.records.offsets))
    assert list(scan.duplicates.rows()) == [(names[5], len(data), 22, 3), (names[6], len(data) + 22, 22, 3)]
    later = V2.scan(data, start=64 + 64 * 30_000)
    assert later.records.id_list() == names[30_000:]


def test_wrong_header_is_told_and_records_are_read():
    record = message(b"i" * 16, b"body")
    for header, state in ((HEADER, "ok"), (b"RSQT" + HEADER[4:], "bad_magic"), (b"RSQS\x03" + HEADER[5:], "bad_version")):
        scan = V2.scan(header + record)
        assert (scan.header, len(scan.records), scan.end.state) == (state, 1, "clean")
    assert V2.header == HEADER


def test_a_large_record_is_stepped_over():
    """One message of 64 MiB: neither it nor a part of it is copied, so the scan takes no longer than that of a small one."""
    data = HEADER + message(bytes(range(16)), bytes(2**26))
    tracemalloc.start()
    try:
        found = V2.scan(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.records), found.end.state) == (1, "clean")
    assert peak < 2**20


def test_scan_continues_after_damage():
    data, sizes = FRAGILE.encode([b"a" * 16, b"b" * 16, b"a" * 16], [b"!bad", b"good", b"good"])
    scan = FRAGILE.scan(HEADER + data)
    assert [(d.offset, d.size, d.reason) for d in scan.damage] == [(64, sizes[0], "exclaimed")]
    assert (scan.records.id_list(), len(scan.duplicates), scan.end.state) == ([b"b" * 16, b"a" * 16], 0, "clean")


RECORD = message(b"i" * 16, b"body")


@pytest.mark.parametrize(
    ("form", "bad", "reason"),
    [
        *((V2, bad, "size_mismatch") for bad in (b"", RECORD[:20], b"\x03" + bytes(20))),
        (FRAGILE, message(b"i" * 16, b"!", 200)[:-1], "size_mismatch"),
        *((V2, kind + RECORD[1:], "unrecognised_record_type") for kind in (b"\x00", b"\x02", b"\xc8")),
        (V2, message(b"j" * 16, b"body"), "id_mismatch"),
        (FRAGILE, message(b"i" * 16, b"!", 200), "exclaimed"),
    ],
)
def test_decode_refuses_what_is_not_the_record(form, bad, reason):
    with pytest.raises(RecordError) as raised:
        form.decode(b"i" * 16, bad)
    assert raised.value.reason == reason
    assert FRAGILE.decode(b"i" * 16, RECORD) == b"body"


@pytest.mark.parametrize(
    ("records", "record"),
    [
        ((), "checksum"),
        ((bound("other", 3),), "message"),
        ((bound("message", 200),), "message"),
        ((bound("other", 0),), "message"),
        ((bound("other", 127),), "message"),
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
_CASES = load("v2_corrupt")["cases"]
CASES = [pytest.param(case, id=case["case"]) for case in _CASES]
BROKEN = [pytest.param(case, id=case["case"]) for case in _CASES if "scan_error" in case["scan"]]
BASELINE = _CASES[0]["scan"]["records"]
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
    data = path.read_bytes()
    scan = V2.scan(data)
    assert rows(scan) == expected_rows(segment["records"])
    assert scan.header == "ok"
    assert set(scan.records.types) <= {3}
    assert not scan.damage
    check_layout(scan, segment["layout"])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert V2.scan(mapped) == scan


@pytest.mark.parametrize("case", CASES)
def test_broken_segments_end_where_the_broker_ends(case):
    data = (DATA / "v2_corrupt" / case["path"]).read_bytes()
    expected = case["scan"]
    error = expected.get("scan_error")
    if error and error["reason"] == "invalid_message_body":
        intact = V2.scan(data)
        assert intact.end.state == "clean"
        at = list(intact.records.offsets).index(error["offset"])
        begin, end = V2.body_span(data, error["offset"], intact.records.sizes[at])
        bad = data[begin:end]
        scan = V2.scan(data, check_body=lambda _, body: body != bad)
    else:
        scan = V2.scan(data)
        assert V2.scan(data, check_body=lambda *_: True) == scan
    if error:
        assert (scan.end.state, scan.end.offset, scan.end.reason) == ("corrupt", error["offset"], error["reason"])
        assert rows(scan) == expected_rows(BASELINE[:3])
    elif "short_header" in expected["layout"]:
        assert (scan.header, scan.end.state, scan.end.offset) == (None, "torn", 0)
    else:
        assert rows(scan) == expected_rows(expected["records"])
        check_layout(scan, expected["layout"])


def test_holes_before_a_corrupt_spot_are_reported():
    scan = V2.scan((DATA / "v2_corrupt" / "hole_after_small_hole" / "0.sqs").read_bytes())
    assert (list(scan.hole_offsets), list(scan.hole_sizes)) == ([478], [2])


@pytest.mark.parametrize("case", BROKEN)
def test_the_chain_behind_a_corrupt_spot_is_found(case):
    data = (DATA / "v2_corrupt" / case["path"]).read_bytes()
    error = case["scan"]["scan_error"]["offset"]
    found = V2.find_chain(data, error + 1)
    assert found is not None
    assert V2.scan(data, start=found).records.ids == bytes.fromhex("".join(record["id"] for record in BASELINE[3:]))
