"""Segments that real brokers wrote, record by record."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import FormatContext, NoOptions
from msgstore_format_v1.format import SegmentFormatV1

DATA = Path(__file__).resolve().parents[3] / "tests" / "data"
V1 = SegmentFormatV1(FormatContext(NoOptions()))

SEGMENTS = [
    pytest.param(DATA / "msg-store" / name / "store" / segment["name"], segment, id=f"{name}-{segment['name']}")
    for name in ("v1_clean", "v1_compacted", "mixed_upgrade")
    for segment in json.loads((DATA / "msg-store" / name / "manifest.json").read_text())["segments"]
    if segment["format"] == "v1"
]


@pytest.mark.parametrize(("path", "segment"), SEGMENTS)
def test_manifest_agrees_record_by_record(path, segment):
    data = path.read_bytes()
    scan = V1.scan(data)
    expected = [(record["id"], record["offset"], record["total_size"]) for record in segment["records"]]
    assert [(msg_id.hex(), offset, size) for msg_id, offset, size, _ in scan.records.rows()] == expected
    assert scan.records.types == bytes(len(expected))
    for record, (msg_id, offset, size, _) in zip(segment["records"], scan.records.rows(), strict=True):
        body = V1.decode(msg_id, data[offset : offset + size])
        assert hashlib.sha256(body).hexdigest() == record["body_sha256"]
    gaps = [(gap["offset"], gap["size"]) for gap in segment["layout"]["gaps"]]
    assert list(zip(scan.hole_offsets, scan.hole_sizes, strict=True)) == gaps
    assert (scan.header, scan.end.state, scan.end.offset) == (None, "clean", len(data))
    assert not scan.duplicates.ids
    assert not scan.damage
    assert V1.scan(data, check_body=lambda _, body: body[:1] == b"\x83") == scan
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert V1.scan(mapped) == scan


def saved_indexes() -> Iterator[Any]:
    """Each file of each store, with what the broker's own index says of it."""
    for dump in sorted((DATA / "rabbitmq-3.10").glob("*/erlang_dump.json")):
        for vhost, tables in json.loads(dump.read_text()).items():
            index = tables.get("msg_store_index_persistent")
            for number in sorted({entry["file"] for entry in index or ()}):
                path = dump.parent / "msg_stores" / "vhosts" / vhost / "msg_store_persistent" / f"{number}.rdq"
                yield pytest.param(path, [entry for entry in index if entry["file"] == number], id=f"{vhost}-{number}")


@pytest.mark.parametrize(("path", "entries"), list(saved_indexes()))
def test_rabbitmq_3_10_finds_what_its_index_names(path, entries):
    data = path.read_bytes()
    scan = V1.scan(data)
    found = {msg_id.hex(): (offset, size) for msg_id, offset, size, _ in scan.records.rows()}
    for entry in entries:
        assert found[entry["id"]] == (entry["offset"], entry["total_size"])
    assert scan.end.state == "clean"
    assert not scan.hole_sizes  # this version combines files: what is dead stays a whole record
