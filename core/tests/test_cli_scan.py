"""``scan`` and ``map`` against what RabbitMQ wrote, and against what it says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import msgstore
from core_support import BROKER, STORES, columns, copy_of, counts_of, flip, manifest_of, objects, rows_of, run, store_of
from msgstore.cli.commands import scan as scan_verb
from msgstore.cli.inputs import Inputs
from msgstore.scan import scan_file


@pytest.mark.parametrize("name", STORES)
def test_scan_agrees_with_manifest(name):
    manifest = manifest_of(name)
    torn = manifest.get("torn", {})
    result = run("scan", "--json", store_of(name), code=1 if torn else 0)
    reports = objects(result)
    assert result.stdout.splitlines() == [json.dumps(report, separators=(",", ":")) for report in reports]
    assert [Path(report["path"]).name for report in reports] == [segment["name"] for segment in manifest["segments"]]
    for report, segment in zip(reports, manifest["segments"], strict=True):
        is_old, is_torn = segment["format"] == "v1", torn.get("file") == segment["name"]
        records = columns(report["records"], "id", "offset", "size", "type")
        expected = columns(segment["records"], "id", "offset", "total_size")
        assert records == [(*record, None if is_old else 3) for record in expected]
        assert (report["format"], report["header"]) == (segment["format"], None if is_old else "ok")
        assert (report["duplicates"], report["damage"]) == ([], [])
        end = ("torn", torn["record_offset"]) if is_torn else ("clean", report["size"])
        assert report["end"] == {"state": end[0], "offset": end[1], "reason": None}
        holes = [hole for hole in report["holes"] if is_old or hole["size"] >= 5]
        assert columns(holes, "offset", "size") == columns(segment["layout"]["gaps" if is_old else "holes"], "offset", "size")


@pytest.mark.parametrize(
    ("case", "options", "state", "duplicates"),
    [
        ("message_body_bad_tag", [], "clean", 0),
        ("message_body_bad_tag", ["--body", "erlang"], "corrupt", 0),
        ("header_truncated_63", [], "torn", 0),
        ("duplicate_id", [], "clean", 1),
    ],
)
def test_scan_of_corrupt_case_has_exit_code(case, options, state, duplicates):
    """Duplicates alone are fine. The tests of the format compare the records and the end of each case."""
    [report] = rows_of("scan", *options, BROKER / "v2_corrupt" / case, code=0 if state == "clean" else 1)
    assert (report["end"]["state"], len(report["duplicates"])) == (state, duplicates)
    assert (report["header"] is None) == (case == "header_truncated_63")
    [error] = [found["scan"].get("scan_error") for found in manifest_of("v2_corrupt")["cases"] if found["case"] == case]
    if state == "corrupt":
        assert report["end"] == {"state": state, "offset": error["offset"], "reason": error["reason"]}


def test_scan_knows_bound_type_byte(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "c.toml").write_text('[stores.a]\npath = "store"\nrecord = "checksum"\n')
    run("put", "a", "11" * 16, "--config", tmp_path / "c.toml", stdin=b"body", code=0)
    [remembered] = rows_of("scan", store)
    assert remembered["records"] == [{"offset": 64, "size": 29, "type": 4, "record": "checksum", "id": "11" * 16}]
    (store / "msgstore.json").unlink()
    [unknown] = rows_of("scan", store, code=1)
    assert unknown["end"] == {"state": "corrupt", "offset": 64, "reason": "unrecognised_record_type"}
    bind = ("scan", "--record", "checksum=4", store)
    assert rows_of(*bind)[0]["records"] == remembered["records"]
    flip(store / "0.sqs", -1)
    assert rows_of(*bind, code=1)[0]["damage"] == [{"offset": 64, "size": 29, "reason": "checksum_mismatch"}]


@pytest.mark.parametrize(("header", "state"), [(b"XSQS\2", "bad_magic"), (b"RSQS\3", "bad_version"), (bytes(5), "bad_magic")])
def test_scan_of_wrong_header_reads_records(tmp_path, header, state):
    (tmp_path / "2.sqs").write_bytes(header + (store_of("v2_clean") / "2.sqs").read_bytes()[5:])
    [report] = rows_of("scan", tmp_path, code=1)
    assert (report["header"], len(report["records"])) == (state, 75)
    assert state in run("scan", tmp_path).stdout


def test_scan_of_directory_is_in_number_order(tmp_path):
    for name in ("10.sqs", "9.rdq", "9.sqs", "2.sqs", "02.sqs", "x.sqs", "note.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [Path(report["path"]).name for report in rows_of("scan", tmp_path, code=1)] == ["2.sqs", "9.rdq", "9.sqs", "10.sqs"]


def test_scan_prints_table_and_damage():
    text = run("scan", store_of("v2_dirty_torn")).stdout
    assert all(part in text for part in ("1.sqs", "torn", "228,047"))
    assert "no damage" in run("scan", store_of("v1_clean")).stdout


# -- map ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_map_covers_every_byte_once(name):
    is_dirty = "dirty" in name
    kinds = {"header", "hole", "torn", "record"} if is_dirty else {"header", "hole", "live", "dead"}
    for drawing in rows_of("map", store_of(name), code=1 if "torn" in name else 0):
        at = 0
        for span in drawing["spans"]:
            assert span["offset"] == at
            at += span["size"]
        assert at == drawing["size"]
        assert (drawing["live_percent"] is None) == is_dirty
        assert {span["kind"] for span in drawing["spans"]} <= kinds


def test_map_knows_live_by_counts_or_index(tmp_path):
    store, counts = copy_of("mixed_upgrade", tmp_path / "store"), counts_of("mixed_upgrade", tmp_path / "counts.csv")
    valid = {row["file"]: row["valid_total_size"] for row in manifest_of("mixed_upgrade")["metadata"][0]["file_summary"]}
    by_counts = rows_of("map", "--refcounts", counts, store)
    assert {int(Path(drawing["path"]).stem): drawing["live_bytes"] for drawing in by_counts} == valid
    run("compact", store, "--adopt", "--refcounts", counts, code=0)
    assert all(drawing["live_bytes"] for drawing in rows_of("map", store))
    text = run("map", store).stdout
    assert "█ live" in text
    assert "% live" in text


def test_map_says_what_is_too_small():
    """On a narrow terminal a small gap is drawn as what is around it; nobody should believe that there is none."""
    narrow, wide = (run("map", store_of("mixed_upgrade"), columns=width).stdout for width in (80, 4000))
    assert "too small to be shown here: hole\n" in narrow
    assert "too small" not in wide


def test_map_without_colour_tells_kinds_apart(tmp_path):
    data = bytearray((store_of("v2_compacted") / "3.sqs").read_bytes())
    data[64] = 0
    contents = (bytes(data), (store_of("v2_dirty_torn") / "1.sqs").read_bytes(), b"")
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.sqs").write_bytes(content)
    text = run("map", tmp_path, code=1).stdout
    first, second, _ = text.splitlines()[1:4]
    assert ("XXX" in first, "▓~" in second, "\x1b" in text) == (True, True, False)


# -- a collector at work ----------------------------------------------------------------------------------------------------


def make_segments(path, count=3):
    with msgstore.open_store(path, gc_interval=0) as store, store.client() as client:
        for number in range(count):
            client.write(bytes([number]) * 16, b"body")
            store.roll()


@pytest.mark.parametrize("verb", ["scan", "map"])
def test_segment_deleted_after_listing_is_passed_over(verb, tmp_path, monkeypatch):
    make_segments(tmp_path / "store")

    def collected_meanwhile(files, path, *arguments, **keys):
        (tmp_path / "store/1.sqs").unlink(missing_ok=True)
        return scan_file(files, path, *arguments, **keys)

    monkeypatch.setattr(scan_verb, "scan_file", collected_meanwhile)
    assert [Path(row["path"]).name for row in rows_of(verb, tmp_path / "store")] == ["0.sqs", "2.sqs"]
    run(verb, "--json", tmp_path / "store/1.sqs", code=2)


@pytest.mark.parametrize("page", [[], ["--html", "page.html"]], ids=["bars", "page"])
def test_segment_deleted_before_measuring_is_passed_over(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_segments("store", 2)
    find = Inputs.find

    def collected_meanwhile(inputs, paths):
        found = list(find(inputs, paths))
        Path("store/0.sqs").unlink()
        return found

    monkeypatch.setattr(Inputs, "find", collected_meanwhile)
    run("map", *page, "store", code=0)
    assert Path("page.html").exists() == bool(page)
