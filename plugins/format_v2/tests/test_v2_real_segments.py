"""Segments that a real broker wrote, record by record, and every way of breaking one that its scanner was shown."""

from __future__ import annotations

import json
import mmap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import FormatContext, NoOptions, SegmentScan
from msgstore_format_v2.format import SegmentFormatV2

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "msg-store"
V2 = SegmentFormatV2(FormatContext(NoOptions()))


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
