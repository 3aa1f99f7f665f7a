"""What msgstore writes with ``body = "erlang"`` is, byte for byte, what RabbitMQ's own store wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import msgstore
from msgstore.files import Files
from msgstore.scan import FormatSet, scan_file
from support import DATA, RealDirectory


@pytest.mark.parametrize(("name", "form"), [("v2_clean", "v2"), ("v1_clean", "v1")])
def test_segments_and_clean_dot_are_the_brokers(name, form, index, tmp_path):
    real = RealDirectory.load(name)
    source = DATA / "msg-store" / name / "store"
    store = msgstore.open_store(
        tmp_path / "store", index=index, format=form, body="erlang", file_size_limit=real.manifest["file_size_limit"]
    )
    client = store.client(bytes.fromhex(real.manifest["client_ref"]).decode())
    for segment in real.manifest["segments"]:
        data = (source / segment["name"]).read_bytes()
        for record in segment["records"]:
            head, tail = (21, 0) if form == "v2" else (24, 1)
            term = data[record["offset"] + head : record["offset"] + record["total_size"] - tail]
            assert term[:2] == b"\x83m"  # a binary: 131, 109, length
            client.write(bytes.fromhex(record["id"]), term[6:])
    store.close()
    for segment in real.manifest["segments"]:
        assert (tmp_path / "store" / segment["name"]).read_bytes() == (source / segment["name"]).read_bytes()
    ours = (tmp_path / "store" / "clean.dot").read_text().splitlines()
    theirs = (source / "clean.dot").read_text().splitlines()
    if form == "v2":
        assert ours == theirs
    else:  # the old broker knew no boundary; ours is the highest .rdq
        assert ours == [*theirs, "{last_v1_file,2}."]


def test_the_boundary_of_a_mixed_directory(index, tmp_path):
    path = RealDirectory.load("mixed_upgrade").copy(tmp_path)
    before = (path / "clean.dot").read_text()
    msgstore.open_store(path, adopt=True, index=index, format="v2").close()
    assert (path / "clean.dot").read_text() == before


def test_what_we_compact_follows_the_rules_for_holes(index, tmp_path):
    """A strict scan of a compacted directory is clean: no hole after a hole, no run of five small ones."""
    real = RealDirectory.load("v2_compacted")
    path = real.copy(tmp_path)
    with msgstore.open_store(path, adopt=True, index=index, format="v2") as store, store.client() as client:
        ids = sorted(real.live)
        client.remove(ids[::3])
        store.compact(everything=True)
    assert _states(path) == {"clean"}


def _states(path: Path) -> set[str]:
    form = FormatSet(msgstore.load_catalogue()).by_name("v2")
    reports = [scan_file(Files(), segment, form) for segment in path.glob("*.sqs")]
    assert reports
    return {report.scan.end.state for report in reports}
